use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;

use super::*;
use crate::InputError;

mod mistakes;
mod permissions;
mod project;
mod text_file;
mod variables;

/// Every section, every required key; line numbers matter to the tests below.
const WHOLE: &str = "\
iterations: 20
model:
  new: {hidden_size: 64, intermediate_size: 128, layers: 2, heads: 4, kv_heads: 2, vocab_size: 512}
env:
  plugin: maze
  config: {range: 10, nested: {a: 1.0, b: [1, two]}}
estimator:
  plugin: stars
  config: {gamma: 0.95}
rollout:
  tasks: 4
  group_size: 8
  max_steps: 10
  max_prompt_tokens: 128
  max_response_tokens: 16
update:
  mini_batch: 32
  lr: 1e-3
  optimizer: {betas: [0.9, 0.95]}
  kl: {coef: 0.01}
  recompute: 1
warm_start:
  steps: 10
  batch: 16
  lr: 1e-3
eval:
  tasks: 50
";

/// Files in memory, by name.
#[derive(Default)]
struct Folder(RefCell<HashMap<PathBuf, String>>);

impl Folder {
    fn write(&self, name: &str, text: &str) -> PathBuf {
        self.0.borrow_mut().insert(name.into(), text.into());
        name.into()
    }

    fn load(&self, path: &Path, sets: &[&str]) -> Result<Recipe> {
        self.load_with(path, sets, &|_| None)
    }

    fn load_with(&self, path: &Path, sets: &[&str], lookup: Lookup) -> Result<Recipe> {
        let read = |path: &Path| {
            let text = self.0.borrow().get(path).cloned().ok_or(std::io::ErrorKind::NotFound)?;
            Ok((path.to_path_buf(), text))
        };
        load_from(path, &sets.iter().map(|set| set.to_string()).collect::<Vec<_>>(), &read, lookup)
    }

    /// The message of a damaged recipe.
    fn error(&self, text: &str, sets: &[&str]) -> String {
        let error = self.load(&self.write("r.yaml", text), sets).expect_err("a damaged recipe");
        assert!(error.chain().any(|cause| cause.is::<InputError>()), "not the user's fault: {error:#}");
        format!("{error:#}")
    }
}

#[test]
fn resolved_recipe_loads_to_the_same() -> Result<()> {
    let folder = Folder::default();
    let recipe = folder.load(&folder.write("r.yaml", WHOLE), &[])?;
    assert_eq!(recipe.update.recompute, Recompute::Blocks(1));
    assert_eq!(recipe.update.lr, 1e-3);
    assert_eq!(recipe.env.all()[0].config["nested"]["b"][1], "two");
    let again = folder.load(&folder.write("again.yaml", &recipe.to_yaml()?), &[])?;
    assert_eq!(again, recipe);
    // Text that looks like something else must stay text.
    for odd in [
        "null",
        "1e3",
        "0x10",
        "~",
        "yes",
        "a: b",
        "# no",
        "two\nlines\n",
        "",
        " padded ",
        "007",
        "+5",
        ".inf",
        "\u{f041} \u{f00c}",
        "\u{f041} ${x}",
        "k: ${it's}",
        "\tx ${ \"a\" }\n",
        "${\\}",
        "$${y} ${{z}}",
    ] {
        let mut recipe = recipe.clone();
        recipe.rollout.template = Some(odd.into());
        recipe.env.all_mut()[0].config["odd"] = odd.into();
        recipe.seed = u64::MAX;
        assert_eq!(folder.load(&folder.write("odd.yaml", &recipe.to_yaml()?), &[])?, recipe, "{odd:?}");
    }
    Ok(())
}

#[test]
fn extends_and_set_replace_values() -> Result<()> {
    let folder = Folder::default();
    folder.write("base.yaml", WHOLE);
    let over =
        "extends: base.yaml\nupdate: {optimizer: {betas: [0.8, 0.9]}, kl: null}\nenv: {config: {nested: {a: 2}}}\n";
    let path = folder.write("over.yaml", over);
    let recipe = folder.load(&path, &[])?;
    assert_eq!((recipe.update.optimizer.betas, &recipe.update.kl, recipe.update.lr), ([0.8, 0.9], &None, 1e-3));
    assert_eq!(recipe.env.all()[0].config, serde_json::json!({"range": 10, "nested": {"a": 2, "b": [1, "two"]}}));

    let sets = ["update.lr=3e-4", "update.kl.coef=0.5", "warm_start=null", "env.config={range: 3}"];
    let recipe = folder.load(&path, &sets)?;
    assert_eq!((recipe.update.lr, recipe.update.kl.map(|kl| kl.coef)), (3e-4, Some(0.5)));
    assert_eq!((recipe.warm_start, recipe.env.all()[0].config.clone()), (None, serde_json::json!({"range": 3})));
    Ok(())
}

#[test]
fn another_plugin_does_not_inherit_the_config() -> Result<()> {
    let folder = Folder::default();
    let base = folder.write("base.yaml", WHOLE);
    let over = folder.write("over.yaml", "extends: base.yaml\nestimator: {plugin: other}\n");
    assert_eq!(folder.load(&over, &[])?.estimator.config, serde_json::json!({}));
    let sets = ["estimator.config.norm=none", "estimator.plugin=other"];
    assert_eq!(folder.load(&base, &sets)?.estimator.config, serde_json::json!({"norm": "none"}));
    let same = ["estimator.plugin=stars"];
    assert_eq!(folder.load(&base, &same)?.estimator.config, serde_json::json!({"gamma": 0.95}));
    Ok(())
}

#[test]
fn errors_name_location_key_and_remedy() {
    let folder = Folder::default();
    // (text to replace, its replacement, parts of the message)
    let damaged: &[(&str, &str, &[&str])] = &[
        (
            "  lr: 1e-3\n  optimizer",
            "  lrr: 1e-3\n  optimizer",
            &["r.yaml:18:3", "unknown key `update.lrr`", "`update.lr`?"],
        ),
        ("iterations: 20", "iteration: 20", &["r.yaml:1:1", "unknown key `iteration`", "did you mean `iterations`?"]),
        ("iterations: 20", "iterations: 20\nmini_batch: 3", &["r.yaml:2:1", "did you mean `update.mini_batch`?"]),
        ("tasks: 50", "tasks: 50\n  zzz: 3", &["r.yaml:28:3", "unknown key `eval.zzz`", "`every`, `tasks`"]),
        ("layers: 2", "layer: 2", &["r.yaml:3:50", "unknown key `model.new.layer`", "`model.new.layers`?"]),
        (
            "  lr: 1e-3\n  optimizer",
            "  lr: fast\n  optimizer",
            &["r.yaml:18:3", "`update.lr` must be a number, but is the text \"fast\""],
        ),
        ("tasks: 4", "tasks: -4", &["r.yaml:11:3", "`rollout.tasks` must be a whole number from 0, but is -4"]),
        ("tasks: 4", "tasks: 4.5", &["`rollout.tasks` must be a whole number", "4.5"]),
        ("tasks: 4", "tasks:", &["r.yaml:11:3", "`rollout.tasks` must be a whole number", "but is empty"]),
        ("plugin: stars", "plugin: 7", &["r.yaml:8:3", "`estimator.plugin` must be text, but is 7"]),
        ("[0.9, 0.95]", "[0.9]", &["r.yaml:19:15", "`update.optimizer.betas` must be a list of 2, but is a list of 1"]),
        ("[0.9, 0.95]", "[0.9, x]", &["r.yaml:19:28", "`update.optimizer.betas` must be a list of 2", "\"x\""]),
        ("recompute: 1", "recompute: some", &["r.yaml:21:3", "`all`", "`none`", "a whole number", "\"some\""]),
        (
            "recompute: 1",
            "schedule: polynomial",
            &["r.yaml:21:3", "`update.schedule` must be `constant`, `cosine` or `linear`", "\"polynomial\""],
        ),
        ("recompute: 1", "schedule: 3", &["r.yaml:21:3", "must be `constant`, `cosine` or `linear`, but is 3"]),
        (
            "coef: 0.01",
            "coef: 0.01, kind: k4",
            &["r.yaml:20:20", "`update.kl.kind` must be `k1`, `k2`, `k3` or `abs`", "\"k4\""],
        ),
        ("iterations: 20\n", "", &["r.yaml:1:1", "the key `iterations` is missing", "a whole number"]),
        ("  mini_batch: 32\n", "", &["r.yaml:16:1", "the key `update.mini_batch` is missing"]),
        ("eval:\n  tasks: 50\n", "eval:\n", &["r.yaml:26:1", "`eval` must be a section, but is empty"]),
        ("  tasks: 4\n", "  tasks: 4\n  tasks: 5\n", &["r.yaml:12:3", "`tasks`", "a second time", "r.yaml:11:3"]),
        ("tasks: 4", "tasks: [4", &["r.yaml:12", "not valid YAML"]),
        // out of range
        ("group_size: 8", "group_size: 0", &["r.yaml:12:3", "`rollout.group_size` must be at least 1"]),
        (
            "tasks: 4",
            "tasks: 4\n  temperature: 0",
            &["r.yaml:12:3", "`rollout.temperature` must be greater than 0, but is 0"],
        ),
        ("tasks: 4", "tasks: 4\n  top_p: 1.5", &["`rollout.top_p` must be greater than 0 and at most 1, but is 1.5"]),
        ("tasks: 4", "tasks: 4\n  slots: 0", &["`rollout.slots` must be at least 1"]),
        ("tasks: 4", "tasks: 4\n  slots: 99999999", &["r.yaml:12:3", "`rollout.slots` must be at most 65536"]),
        ("tasks: 4", "tasks: 4\n  open_episodes: 0", &["`rollout.open_episodes` must be at least 1"]),
        ("tasks: 4", "tasks: 4\n  env_threads: 99999", &["`rollout.env_threads` must be at most 1024, but is 99999"]),
        ("iterations: 20", "iterations: 20\ndist: {timeout_s: 0}", &["r.yaml:2:8", "`dist.timeout_s` must be from 1"]),
        (
            "iterations: 20",
            "iterations: 20\ndist: {silence_s: 4}",
            &["r.yaml:2:8", "`dist.silence_s` must be from 5 to 50, but is 4"],
        ),
        ("layers: 2", "layers: 9000000000000", &["r.yaml:3:50", "`model.new.layers` must be from 1 to 1000"]),
        ("tasks: 4", "tasks: 4\n  thinking: true", &["`rollout.thinking`", "`model.new` has none"]),
        ("mini_batch: 32", "mini_batch: 0", &["r.yaml:17:3", "`update.mini_batch`"]),
        ("mini_batch: 32", "mini_batch: 32\n  warmup: 21", &["r.yaml:18:3", "at most `iterations` (20), but is 21"]),
        ("mini_batch: 32", "mini_batch: 32\n  clip_low: 1", &["`update.clip_low` must be between 0 and 1"]),
        ("coef: 0.01", "coef: -1", &["r.yaml:20:8", "`update.kl.coef` must be 0 or more, but is -1"]),
        ("[0.9, 0.95]", "[0.9, 1.0]", &["r.yaml:19:15", "`update.optimizer.betas` must be from 0 to below 1"]),
        ("  batch: 16", "  expert_noise: 2\n  batch: 16", &["`warm_start.expert_noise` must be from 0 to 1"]),
        ("heads: 4", "heads: 5", &["r.yaml:3:9", "`model.new.hidden_size`", "multiple of twice `heads`"]),
        (
            "model:\n",
            "model:\n  lora: {rank: 0, alpha: 16}\n",
            &["r.yaml:3:10", "`model.lora.rank` must be from 1 to 4096, but is 0"],
        ),
        ("model:\n", "model:\n  lora: {rank: 8, alpha: 0}\n", &["`model.lora.alpha` must be greater than 0, but is 0"]),
        ("model:\n", "model:\n  lora: {rank: 8}\n", &["the key `model.lora.alpha` is missing"]),
        ("vocab_size: 512", "vocab_size: 258", &["r.yaml:3:84", "`model.new.vocab_size` must be at least 259"]),
        (
            "vocab_size: 512",
            "vocab_size: 512, initializer_range: 0",
            &["`model.new.initializer_range` must be greater than 0 and finite, but is 0"],
        ),
        (
            "group_size: 8",
            "group_size: 1048576",
            &["r.yaml:12:3", "`rollout.group_size` times `tasks` (4) must be at most 1048576 episodes, but is 1048576"],
        ),
        (
            "mini_batch: 32",
            "mini_batch: 321",
            &["r.yaml:17:3", "`update.mini_batch` must be at most", "(320)", "is 321"],
        ),
        (
            "tasks: 4",
            "tasks: 4\n  cache_tokens: 143",
            &["r.yaml:12:3", "`rollout.cache_tokens` must be at least `max_prompt_tokens`", "(144), but is 143"],
        ),
        (
            "mini_batch: 32",
            "mini_batch: 32\n  micro_batch_tokens: 143",
            &["r.yaml:18:3", "`update.micro_batch_tokens` must be at least `max_prompt_tokens`", "(144), but is 143"],
        ),
        (
            "tasks: 4",
            "tasks: 4\n  dynamic_sampling: {rounds: 1}",
            &["r.yaml:12:22", "`rollout.dynamic_sampling.rounds` must be at least 2"],
        ),
        (
            "tasks: 4",
            "tasks: 4\n  dynamic_sampling: {rounds: 134217728}",
            &["`rollout.dynamic_sampling.rounds` times `tasks` and `group_size` must be less than 2^32"],
        ),
        (
            "group_size: 8",
            "group_size: 1\n  dynamic_sampling: {rounds: 2}",
            &["r.yaml:13:3", "`rollout.dynamic_sampling` needs `rollout.group_size` of at least 2"],
        ),
        ("kv_heads: 2", "kv_heads: 3", &["`model.new.kv_heads` must divide `heads` (4)"]),
        ("model:\n", "model:\n  path: x\n", &["r.yaml:2:1", "`model` holds both `path` and `new`"]),
        ("lr: 1e-3\n  optimizer", "lr: .inf\n  optimizer", &["r.yaml:18:7", "not a finite number"]),
    ];
    let mut failures = Vec::new();
    for (old, new, parts) in damaged {
        assert!(WHOLE.contains(old), "{old:?} is not in the recipe");
        let message = folder.error(&WHOLE.replacen(old, new, 1), &[]);
        let missing = parts.iter().filter(|part| !message.contains(**part)).map(|part| format!("{part:?}"));
        failures.extend(missing.map(|part| format!("{new:?}: {part} is not in {message:?}")));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_transcript_requires_and_excludes_keys() -> Result<()> {
    let folder = Folder::default();
    let mode = "rollout.history.mode=transcript";
    let limit = "rollout.max_sequence_tokens=600";
    let load = |sets: &[&str]| folder.load(&folder.write("t.yaml", WHOLE), sets);
    let recipe = load(&[mode, limit, "rollout.history.length=0"])?;
    assert_eq!((recipe.rollout.max_tokens(), recipe.rollout.history_length()), (600, 0));
    let window = load(&[])?.rollout;
    let longest = window.max_prompt_tokens + window.max_response_tokens;
    assert_eq!((window.max_tokens(), window.history_length()), (longest, 2));
    let small = format!("rollout.max_sequence_tokens={}", longest - 1);
    let least = format!("`max_prompt_tokens` + `max_response_tokens` ({longest})");
    for (sets, parts) in [
        (&[limit][..], &["`rollout.max_sequence_tokens` belongs to `rollout.history.mode: transcript`", "600"][..]),
        (&[mode], &["`rollout.max_sequence_tokens` must be at least", &least, "is missing"]),
        (&[mode, &small], &["`rollout.max_sequence_tokens` must be at least", &least]),
        (&[mode, limit, "rollout.history.length=2"], &["`rollout.history.length` must be 0 or left out", "but is 2"]),
        (&[mode, limit, "rollout.truncation=left"], &["`rollout.truncation` must be `error`"]),
        (&[mode, limit, "update.mini_batch=5"], &["`update.mini_batch` must be at least `rollout.max_steps`", "is 5"]),
        (&[mode, limit, "update.micro_batch_tokens=599"], &["`update.micro_batch_tokens` must be at least", "(600)"]),
        (&[mode, limit, "warm_start.batch=5"], &["`warm_start.batch` must be at least `rollout.max_steps`", "is 5"]),
    ] {
        let message = folder.error(WHOLE, sets);
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    Ok(())
}

#[test]
fn errors_name_the_argument_and_the_extended_file() {
    let folder = Folder::default();
    let cases: &[(&[&str], &str)] = &[
        (&["update.lrr=1"], "--set update.lrr=1: unknown key `update.lrr`; did you mean `update.lr`?"),
        (&["updat.lr=1"], "--set updat.lr=1: unknown key `updat`; did you mean `update`?"),
        (&["update.lr=x"], "--set update.lr=x: `update.lr` must be a number, but is the text \"x\""),
        (&["update.lr=0"], "--set update.lr=0: `update.lr` must be greater than 0, but is 0"),
        (&["update.lr"], "--set update.lr: expected `--set key.path=value`, for example `--set update.lr=1e-5`"),
        (&["seed.x=1"], "--set seed.x=1: `seed` holds one value, not keys of its own"),
    ];
    for (sets, wanted) in cases {
        assert_eq!(&folder.error(&format!("seed: 3\n{WHOLE}"), sets), wanted);
    }
    let (before, after) = WHOLE.split_once("warm_start:").expect("there is a warm start");
    let without = format!("{before}{}", &after[after.find("eval:").expect("an eval section")..]);
    let message = folder.error(&without, &["warm_start.steps=3"]);
    assert!(
        message.starts_with("2 problems:\n  (1) --set warm_start.steps=3: the key `warm_start.batch` is missing"),
        "{message}"
    );

    folder.write("base.yaml", &WHOLE.replace("mini_batch", "minibatch"));
    let message = folder.error("extends: base.yaml\nseed: 1\n", &[]);
    assert!(message.starts_with("base.yaml:17:3: unknown key `update.minibatch`"), "{message}");
    assert_eq!(folder.error("extends: none.yaml\n", &[]), "r.yaml:1:1: there is no recipe none.yaml");
    folder.write("a.yaml", "extends: r.yaml\n");
    assert_eq!(folder.error("extends: a.yaml\n", &[]), "a.yaml:1:1: r.yaml extends itself");
}

#[test]
fn all_problems_are_reported_at_once() {
    let folder = Folder::default();
    // Forms: a misspelt key is one problem, and not also that its right name is missing.
    let text = WHOLE.replace("mini_batch", "minibatch").replace("iterations: 20", "iterations: many");
    let message = folder.error(&text, &["device=gpu", "update.optimizer.betas=[1, x]", "eval=null"]);
    for part in [
        "5 problems:\n  (1) r.yaml:1:1: `iterations` must be",
        "\n  (2) r.yaml:17:3: ",
        "did you mean `update.mini_batch`?",
        "`device` must be",
        "`eval`",
        "`update.optimizer.betas`",
    ] {
        assert!(message.contains(part), "{message}: no {part}");
    }
    assert!(!message.contains("is missing") || message.matches("is missing").count() == 1, "{message}");
    // Ranges: one of each section, and no sum over sections with a wrong term.
    let message = folder.error(WHOLE, &["rollout.tasks=0", "update.lr=0", "eval.tasks=0", "checkpoint.keep=0"]);
    assert!(message.starts_with("4 problems:\n  (1) ") && !message.contains("mini_batch"), "{message}");
    // One a line, in the order of the file; a recipe of many faults still ends.
    let many = |count: u32| (0..count).map(|i| format!("key_{i}: 1\n")).collect::<String>() + WHOLE;
    let message = folder.error(&many(60), &[]);
    let places: Vec<String> =
        (1..=60).map(|line| format!("  ({line}) r.yaml:{line}:1: unknown key `key_{}`", line - 1)).collect();
    let all: Vec<&str> = lines(&message).collect();
    assert_eq!((all.len(), all[0]), (61, "60 problems:"), "{message}");
    assert!(all[1..].iter().zip(&places).all(|(line, place)| line.starts_with(place)), "{message}");
    let message = folder.error(&many(150), &[]);
    assert!(lines(&message).count() == 102 && message.ends_with("\n  (and 50 more)"), "{message}");
}

#[test]
fn text_of_another_encoding_is_refused_with_its_place() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("nestor-recipe-encoding-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let path = dir.join("r.yaml");
    let message = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("a file");
        load(&path, &[]).map_or_else(|error| format!("{error:#}"), |_| "accepted".into())
    };
    assert!(
        message(b"# gr\xc3\xbc\xc3\x9fe\nseed: 1 # nai\xe9\n")
            .ends_with("r.yaml:2:14: the byte 0xe9 is not UTF-8; save the file as UTF-8")
    );
    assert!(message(b"\xff\xfes\0").ends_with("r.yaml:1:1: this is UTF-16; save the file as UTF-8"));
    assert_eq!(message(format!("\u{feff}{WHOLE}").as_bytes()), "accepted");
    assert_eq!(message(WHOLE.replace('\n', "\r\n").as_bytes()), "accepted");
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

#[test]
fn unbounded_recipes_are_refused() {
    let folder = Folder::default();
    let lists = |count: usize| format!("a: &a {}{}\n", "[".repeat(count), "]".repeat(count));
    let cases = [
        (format!("{}b: &b {}*a{}\n", lists(60), "[".repeat(60), "]".repeat(60)), "r.yaml:2:67: this alias makes"),
        (lists(70), "r.yaml:1:71: nested too deeply"),
        (
            [
                "a: &a [x, x, x, x, x, x, x, x, x, x]",
                "b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]",
                "c: &c [*b, *b]",
            ]
            .join("\n")
                + "\nd: &d [*c, *c, *c, *c, *c, *c, *c]\ne: &e [*d, *d, *d, *d, *d, *d, *d]",
            "this alias makes the recipe too large",
        ),
        ((0..=10_000).map(|i| format!("k{i}: 0\n")).collect(), "r.yaml:10001:1: this map has more than 10000 keys"),
        ("a: &a [*a]\n".into(), "r.yaml:1:8: this alias names an anchor that is not complete yet"),
    ];
    for (text, part) in cases {
        let message = folder.error(&text, &[]);
        assert!(message.contains(part), "{message}");
    }
    let message = folder.error(WHOLE, &[&format!("{}a=1", "a.".repeat(100))]);
    assert!(message.contains("nested too deeply"), "{message}");
    for number in 0..20 {
        folder.write(&format!("{number}.yaml"), &format!("extends: {}.yaml\n", number + 1));
    }
    assert!(folder.error("extends: 0.yaml\n", &[]).contains("16 recipes extend each other"));
}

/// Other YAML files are as strict as recipes.
#[test]
fn other_files_have_the_same_errors() -> Result<()> {
    #[derive(Debug, PartialEq, serde::Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct OtherFile {
        size: usize,
        #[serde(default)]
        inner: Option<OtherSection>,
    }
    #[derive(Debug, PartialEq, serde::Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct OtherSection {
        width: f64,
    }
    let path = std::env::temp_dir().join(format!("nestor-recipe-other-{}.yaml", std::process::id()));
    let problem = |other: &OtherFile| (other.size == 0).then(|| ("size".to_string(), "must be at least 1".to_string()));
    let read = |text: &str| {
        std::fs::write(&path, text).expect("a file");
        load_as(&path, problem)
    };
    assert_eq!(read("size: 2\ninner: {width: 1}\n")?, OtherFile { size: 2, inner: Some(OtherSection { width: 1.0 }) });
    for (text, wanted) in [
        ("size: 2\nsiez: 3\n", ":2:1: unknown key `siez`; did you mean `size`?"),
        ("size: 2\ninner: {widht: 1}\n", ":2:9: unknown key `inner.widht`; did you mean `inner.width`?"),
        ("size: x\n", ":1:1: `size` must be a whole number from 0, but is the text \"x\""),
        ("inner: {width: 1}\n", ":1:1: the key `size` is missing (a whole number from 0)"),
        ("size: 0\n", ":1:1: `size` must be at least 1"),
        ("- 1\n", ":1:1: this file must be a map of keys"),
    ] {
        let error = read(text).expect_err("a damaged file");
        assert!(error.is::<InputError>() && error.to_string().ends_with(wanted), "{error}");
    }
    std::fs::remove_file(&path)?;
    Ok(())
}
