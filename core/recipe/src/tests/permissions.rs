//! Permissions to change keys when a run is resumed: the lists are complete, and every change acts as they say.

use super::*;
use crate::permissions::{BETWEEN_ITERATIONS, FIXED, FREE};

#[test]
fn every_key_has_one_permission() {
    let mut listed: Vec<&str> = [FREE, BETWEEN_ITERATIONS, FIXED].concat();
    listed.sort_unstable();
    let twice: Vec<_> = listed.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    assert!(twice.is_empty(), "in two lists: {twice:?}");
    let known = keys();
    let strange: Vec<_> = listed.iter().filter(|path| known.iter().all(|key| key.path != **path)).collect();
    assert!(strange.is_empty(), "no keys: {strange:?}");
    // A section that every recipe has never appears or disappears, so only its keys change.
    let always = |key: &Key| key.kind == "a section" && key.default.as_deref() != Some("none");
    let missing: Vec<_> = known.iter().filter(|key| key.on_resume.is_none() && !always(key)).collect();
    assert!(missing.is_empty(), "sort these keys into a list of this file: {missing:?}");
}

/// One change of every key as a `--set` argument; `>` marks those that a resumed run refuses, `-` those that it refuses
/// inside an update.
const CHANGES: &str = "
  checkpoint.every=3        checkpoint.keep=9           checkpoint.rollouts_every=0  checkpoint.resume=auto  checkpoint.background=true  checkpoint.mirror=copy  critic.grad_clip=2
  critic.lr=1e-3            deterministic=true          device=cpu                   dist.silence_s=20
  checkpoint.every_minutes=5  env.cpu_s=60              env.isolate=none             env.memory_gib=2
  env.timeout_s=60          estimator.cpu_s=60          estimator.isolate=process    estimator.memory_gib=0
  estimator.timeout_s=60
  dist.timeout_s=100        eval.every=7                eval.split=other             eval.tasks=7
  eval.samples=2            eval.save_episodes=false    eval.seed=5
  eval.temperature=0.5      iterations=21               rollout.cache_tokens=9999    rollout.env_errors=3
  rollout.env_threads=5     rollout.open_episodes=5  rollout.slots=5             sharding=grad_op             update.optimizer.betas=[0.8,0.9]
  update.grad_clip=2        update.lr=1e-5              update.micro_batch_tokens=999 update.min_lr_ratio=0.1
  update.recompute=all      update.schedule=cosine      update.warmup=2              update.optimizer.weight_decay=0.1
  update.optimizer.eps=1e-6 update.offload=moments
  wandb.entity=x            wandb.group=x               wandb.mode=live              wandb.name=x
  wandb.notes=x             wandb.project=x             wandb.table_episodes=1       wandb.table_every=1
  wandb.tags=[x]            wandb=null                  tensorboard.dir=x            tensorboard=null
  model.vision.cache_tokens=9  update.max_skipped=3
- critic.clip=1             - critic.warmup=2           - rollout.dynamic_sampling.rounds=4
- rollout.curriculum.window=9  - rollout.curriculum.floor=0.5  - rollout.curriculum=null
- rollout.dynamic_sampling=null                         - rollout.invalid_action_penalty=0.5
- rollout.stop=[x]         - rollout.temperature=0.5   - rollout.top_k=3           - rollout.top_p=0.5          - rollout.min_p=0.1          - rollout.truncation=left
- update.aggregation=seq-mean-token-sum                 - update.clip_high=0.3       - update.clip_low=0.3
- update.dual_clip=4        - update.entropy=0          - update.epochs=2            - update.importance_cap=2
- update.kl.coef=0.02       - update.kl.kind=k1         - update.kl=null             - update.kl_in_reward.coef=0.5
- update.kl_in_reward.kind=k2                           - update.kl_in_reward.adaptive.target=1
- update.kl_in_reward.adaptive.horizon=9                - update.kl_in_reward.adaptive=null
- update.kl_in_reward=null  - update.mini_batch=16      - update.old_logprobs=recompute
- update.regularizer_aggregation=token-sum-norm         - update.short_mini_batch=reference
- update.shuffle=true       - update.reweight.method=max_min                         - update.reweight.power=3
- update.reweight=null     - update.mask_cut_responses=true
> critic=null               > dtype=float32             > env.config.range=11        > env.config.new=1
> env.config={range:10}     > estimator.config.gamma=1  > estimator.config={gamma:1} > model.lora.alpha=3
> estimator.teacher.path=x  > estimator.teacher=null      > reference.path=x            > reference=null
> estimator.teacher.template=x
> model.lora.init=gaussian  > model.lora.target_modules=[q_proj]
> model.lora.rank=3         > model.lora=null           > model.new.heads=8          > model.new.hidden_size=32
> model.new.initializer_range=0.1                       > model.new.intermediate_size=64
> model.new.vision.heads=1  > model.new.vision.hidden_size=8                       > model.new.vision.patch_size=7
> model.new.vision.intermediate_size=8                  > model.new.vision.layers=1  > model.vision.train=none
> model.vision.min_pixels=9 > model.vision.max_pixels=9 > model.vision=null
> model.new.kv_heads=4      > model.new.layers=1        > model.new.vocab_size=600   > rollout.group_size=4
> rollout.history.length=1  > rollout.max_prompt_tokens=99                           > rollout.max_response_tokens=9
> rollout.max_steps=9       > rollout.split=other       > rollout.tasks=5            > rollout.template=x
> rollout.system=x          > seed=8                    > warm_start.batch=8        > warm_start.expert_noise=0.5
> warm_start.lr=1           > warm_start.steps=9        > warm_start=null              > wandb.id=x
> warm_start.schedule=cosine                            > warm_start.warmup=3        > warm_start.min_lr_ratio=0.5
";

/// Changes of keys that only come together with others, or that this recipe cannot show alone.
const ELSEWHERE: [&str; 39] = [
    "env",
    "env.eval_split",
    "env.name",
    "env.plugin",
    "env.sha256",
    "env.split",
    "env.weight",
    "estimator.plugin",
    "estimator.sha256",
    "loss",
    "loss.config",
    "loss.cpu_s",
    "loss.isolate",
    "loss.memory_gib",
    "loss.plugin",
    "loss.sha256",
    "loss.timeout_s",
    "model.new",
    "model.new.vision",
    "model.path",
    "rollout.curriculum.by",
    "rollout.history.mode",
    "rollout.max_sequence_tokens",
    "rollout.thinking",
    "update.loss",
    "update.loss_scale",
    "update.optimizer.adamw_lr_ratio",
    "update.optimizer.momentum",
    "update.optimizer.name",
    "update.optimizer.scale",
    "update.target_kl",
    "warm_start.data",
    "warm_start.epochs",
    "warm_start.max_tokens",
    "warm_start.shuffle",
    "warm_start.too_long",
    "warm_start.validate_every",
    "warm_start.validation",
    "warm_start.validation_share",
];

/// The recipe with every optional section.
const SECTIONS: &str = "\
critic: {}
wandb: {tags: [a]}
tensorboard: {}
";

#[test]
fn a_resume_prints_refuses_or_allows_every_change() -> Result<()> {
    let folder = Folder::default();
    let sets = [
        "model.lora={rank: 2, alpha: 4}",
        "model.new.vision={layers: 2, hidden_size: 16, intermediate_size: 16, heads: 2}",
        "model.vision={}",
        "rollout.dynamic_sampling={rounds: 3}",
        "rollout.curriculum={}",
        "update.kl_in_reward={adaptive: {}}",
        "update.reweight={}",
        "estimator.teacher={path: teacher}",
        "reference={path: reference}",
    ];
    let path = folder.write("r.yaml", &format!("{WHOLE}{SECTIONS}"));
    let before = folder.load(&path, &sets)?;
    let mut shown = Vec::new();
    let mut words = CHANGES.split_whitespace().peekable();
    while let Some(mut word) = words.next() {
        let permission = match word {
            "-" => OnResume::BetweenIterations,
            ">" => OnResume::Fixed,
            _ => OnResume::Free,
        };
        if permission != OnResume::Free {
            word = words.next().expect("a change after its mark");
        }
        let (key, _) = word.split_once('=').expect("KEY=VALUE");
        let set = word.replacen(":", ": ", 1);
        let after = folder.load(&path, &[&sets[..], &[&set]].concat())?;
        let none: [String; 0] = [];
        let changes = Changes::new(&before, &after, &none)?;
        assert!(changes.changes.iter().all(|change| change.key.starts_with(key)), "{word}: {changes:?}");
        let line = changes.changes.first().map(ToString::to_string).expect(word);
        assert!(changes.changes.iter().all(|change| change.on_resume() == permission), "{word}: {changes:?}");
        let (between, inside) = (changes.check(None), changes.check(Some(3)));
        assert_eq!(between.is_err(), permission == OnResume::Fixed, "{word}");
        assert_eq!(inside.is_err(), permission != OnResume::Free, "{word}");
        for error in [between, inside].into_iter().filter_map(Result::err) {
            assert!(error.is::<InputError>() && error.to_string().contains(&line), "{word}: {error}");
        }
        // The permission of the user lifts the first refusal, by key or section, and never the second.
        for name in [key, key.split('.').next().unwrap_or(key)] {
            let allowed = [name.to_string()];
            let changes = Changes::new(&before, &after, &allowed)?;
            assert!(changes.check(None).is_ok(), "{word}");
            assert_eq!(changes.check(Some(3)).is_err(), permission != OnResume::Free, "{word}");
        }
        shown.push(key);
    }
    assert!(shown.len() >= 60);
    let missing =
        |key: &Key| key.on_resume.is_some() && !shown.contains(&&*key.path) && !ELSEWHERE.contains(&&*key.path);
    let missing: Vec<_> = keys().into_iter().filter(missing).map(|key| key.path).collect();
    assert!(missing.is_empty(), "add a change of these keys: {missing:?}");
    Ok(())
}

/// A loss plugin excludes the keys of the built-in losses, so it is not in the list above.
#[test]
fn a_loss_plugin_changes_between_iterations_and_has_keys_of_its_own() -> Result<()> {
    let folder = Folder::default();
    let path = folder.write("r.yaml", &format!("{WHOLE}loss: {{plugin: holder, config: {{p: 1.0}}}}\n"));
    let before = folder.load(&path, &[])?;
    let none: [String; 0] = [];
    for (set, permission) in [
        ("loss.config.p=2", OnResume::BetweenIterations),
        ("loss.plugin=other", OnResume::BetweenIterations),
        ("loss=null", OnResume::BetweenIterations),
        ("loss.timeout_s=9", OnResume::Free),
    ] {
        let changes = Changes::new(&before, &folder.load(&path, &[set])?, &none)?;
        assert!(!changes.changes.is_empty(), "{set}");
        assert!(changes.changes.iter().all(|change| change.on_resume() == permission), "{set}: {changes:?}");
    }
    for set in [
        "update.loss=cispo",
        "update.clip_high=0.3",
        "update.clip_low=0.1",
        "update.dual_clip=4",
        "update.importance_cap=2",
    ] {
        let error = folder.load(&path, &[set]).expect_err(set).to_string();
        let (key, _) = set.split_once('=').expect("KEY=VALUE");
        assert!(error.contains(&format!("`{key}` belongs to the built-in losses")), "{set}: {error}");
    }
    Ok(())
}

/// Keys of environments in a list have the numbers of their entries, and the permissions of the section `env`.
#[test]
fn environments_of_a_list_change_as_one_alone_does() -> Result<()> {
    let folder = Folder::default();
    let list = WHOLE.replace(
        "env:\n  plugin: maze\n  config: {range: 10, nested: {a: 1.0, b: [1, two]}}\n",
        "env:\n- {plugin: maze, config: {range: 10}, weight: 2}\n- {plugin: cave}\n",
    );
    let path = folder.write("r.yaml", &list);
    let before = folder.load(&path, &[])?;
    assert_eq!(before.env.names(), "maze, cave");
    let resolved = folder.write("resolved.yaml", &before.to_yaml()?);
    assert_eq!(folder.load(&resolved, &[])?, before);
    for (set, line, permission) in [
        ("env.1.timeout_s=9", "env.1.timeout_s: 300 -> 9", OnResume::Free),
        ("env.0.weight=3", "env.0.weight: 2.0 -> 3.0", OnResume::Fixed),
        ("env.0.config.range=3", "env.0.config.range: 10 -> 3", OnResume::Fixed),
        ("env.1.eval_split=test", "env.1.eval_split: none -> test", OnResume::Fixed),
        ("env=[{plugin: maze}]", "env: ", OnResume::Fixed),
        ("env={plugin: maze}", "env: ", OnResume::Fixed),
    ] {
        let allowed = [set.split('=').next().unwrap_or(set).to_string()];
        let after = folder.load(&path, &[set])?;
        let changes = Changes::new(&before, &after, &allowed)?;
        let [change] = &changes.changes[..] else { panic!("{set}: {:?}", changes.changes) };
        assert!(change.to_string().starts_with(line), "{change}");
        assert_eq!(change.on_resume(), permission, "{set}");
        assert!(changes.check(None).is_ok(), "{set}");
        assert_eq!(
            Changes { allowed: &[], ..changes.clone() }.check(None).is_err(),
            permission == OnResume::Fixed,
            "{set}"
        );
        let evaluation = !set.contains("timeout") && !set.contains("weight");
        assert_eq!(changes.change_evaluation(), evaluation, "{set}");
    }
    let error = folder.load(&path, &["env.2.weight=1"]).expect_err("no such entry").to_string();
    assert!(error.contains("`env` is a list of 2, whose items have the numbers from 0; `2` is none"), "{error}");
    Ok(())
}

#[test]
fn changes_show_old_and_new_values() -> Result<()> {
    let folder = Folder::default();
    let path = folder.write("r.yaml", WHOLE);
    let lines = |sets: &[&str]| -> Result<Vec<String>> {
        let changes = changes(&folder.load(&path, &[])?, &folder.load(&path, sets)?)?;
        Ok(changes.iter().map(ToString::to_string).collect())
    };
    assert_eq!(lines(&["update.lr=1e-5"])?, ["update.lr: 1e-3 -> 1e-5"]);
    assert_eq!(lines(&["update.lr=0.001", "rollout.history.length=2"])?, [""; 0]);
    assert_eq!(lines(&["wandb={}"])?[0].split(" -> ").next(), Some("wandb: none"));
    assert_eq!(lines(&[r#"rollout.template="a\nb""#])?, [r#"rollout.template: none -> "a\nb""#]);
    let [line] = &lines(&[&format!("rollout.template={}", "é".repeat(99))])?[..] else { panic!("one change") };
    assert_eq!(line.chars().count(), "rollout.template: none -> …".chars().count() + 60);
    let recipe = folder.load(&path, &[])?;
    let error = Changes::new(&recipe, &recipe, &["update.lrr".into()]).expect_err("no such key");
    assert!(error.to_string().ends_with("did you mean `update.lr`?"), "{error}");
    Ok(())
}

/// A run of an older version resumes, and its recipe reads as the present one; a user's recipe gets the new name of the key.
#[test]
fn keys_that_moved_are_moved_in_saved_recipes_alone() -> Result<()> {
    let folder = Folder::default();
    let old = WHOLE.replace("  optimizer: {betas: [0.9, 0.95]}", "  weight_decay: 0.1\n  betas: [0.9, 0.95]");
    let path = folder.write("saved.yaml", &format!("# From iteration 3 on; all defaults are filled in.\n{old}"));
    let saved = folder.load(&path, &[])?;
    let optimizer = Optimizer { betas: [0.9, 0.95], weight_decay: 0.1, ..Optimizer::default() };
    assert_eq!(saved.update.optimizer, optimizer);
    assert!(folder.error(&old, &[]).contains("did you mean `update.optimizer.weight_decay`?"));
    Ok(())
}
