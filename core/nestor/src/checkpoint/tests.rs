//! Ranks are threads of one process, joined over loopback. Slices of a partition are small in tests, so that tensors
//! are cut into many pieces.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

use nestor_torch::Backend;
use serde_json::json;
use tch::{Device, Kind};

use super::manifest::verify;
use super::*;
use crate::error::message;
use crate::model::config::Output;
use crate::model::stored::to_bytes;
use crate::model::unit_weights;
use crate::ranks::{C10d, Rendezvous, Secret, Solo};
use crate::recipe::Dist;
use crate::recipe::Lora;
use crate::shard::{Adapters, Partition, Ranks};
use crate::version::{COMMIT, VERSION};

/// A free port that this process uses once. It is below those that Linux assigns, so that no other program gets it.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 15_000 + (number % 5_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Runs `play` at every rank and returns the results in order of rank.
fn ranks<T: Send>(world: usize, play: impl Fn(&dyn Comm) -> T + Sync) -> Vec<T> {
    if world == 1 {
        return vec![play(&Solo { device: Device::Cpu })];
    }
    let port = free_port();
    let (host, prefix) = ("127.0.0.1".to_string(), "test".to_string());
    let rendezvous = |rank| Rendezvous {
        rank,
        world,
        local_rank: rank,
        host: host.clone(),
        port,
        prefix: prefix.clone(),
        served: false,
        launched: true,
        secret: Secret::default(),
    };
    std::thread::scope(|scope| {
        let (rendezvous, play) = (&rendezvous, &play);
        let join = move |rank| {
            let comm = C10d::join(Backend::Gloo, &rendezvous(rank), Device::Cpu, &Dist::default()).expect("joined");
            play(&comm)
        };
        let threads: Vec<_> = (0..world).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

const SOLO: Solo = Solo { device: Device::Cpu };

/// A network with parameters of odd sizes.
fn config() -> Config {
    Config {
        vocab_size: 131,
        hidden_size: 24,
        intermediate_size: 37,
        num_hidden_layers: 3,
        ..Config::shape("tiny").expect("a shape")
    }
}

/// The sets of a checkpoint with adapters, with their layouts.
fn layouts() -> Vec<(&'static str, Vec<Layout>)> {
    let all = unit_weights::layouts(&config());
    let critic = unit_weights::layouts(&Config { output: Output::Value, ..config() });
    let adapters = Adapters::layouts_of(&all[1..], &Lora::of_all(3, 6.0));
    let sets = [
        (POLICY.master_weights, all),
        (ADAPTER, adapters.clone()),
        ("exp_avg", adapters),
        (CRITIC.master_weights, critic),
    ];
    let cut = |units: Vec<Layout>| units.into_iter().map(|unit| unit.with_slices(1_000)).collect();
    sets.map(|(name, units)| (name, cut(units))).into()
}

/// A unit's flat tensor of distinct numbers.
fn flat(set: usize, unit: usize, layout: &Layout) -> Tensor {
    let first = (set * 4 + unit) as i64 * 100_000;
    Tensor::arange_start(first, first + layout.numel(), (Kind::Float, Device::Cpu))
}

/// A rank's shards of a set. Their padding is NaN, which must never be stored.
fn shards(comm: &dyn Comm, set: usize, layouts: &[Layout]) -> Vec<Tensor> {
    let shard = |(unit, layout): (usize, &Layout)| {
        let partition = layout.partition(comm.world());
        let (whole, own) = (flat(set, unit, layout), empty(&partition));
        for piece in partition.pieces(comm.rank()) {
            own.narrow(0, piece.shard_start, piece.length).copy_(&whole.narrow(0, piece.start, piece.length));
        }
        own
    };
    layouts.iter().enumerate().map(shard).collect()
}

fn empty(partition: &Partition) -> Tensor {
    Tensor::full([partition.shard_numel()], f64::NAN, (Kind::Float, Device::Cpu))
}

fn bits(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    let bytes = |tensor: &Tensor| {
        let mut bytes = Vec::new();
        to_bytes(tensor, Kind::Float, &mut bytes);
        bytes
    };
    tensors.iter().map(bytes).collect()
}

/// Makes a run directory with a model's files.
fn run_dir() -> tempfile::TempDir {
    let run = tempfile::tempdir().expect("a folder");
    let model = run.path().join("model");
    fs::create_dir(&model).expect("made");
    write_json(&model.join(CONFIG), &config().to_json(&[2], Kind::Float).expect("json")).expect("written");
    fs::write(model.join(TOKENIZER), "{\"a\": \"tokenizer\"}").expect("written");
    run
}

/// Saves the tensors that `of` returns for each set, from `world` ranks, and returns the directory.
fn save(
    run: &Path,
    world: usize,
    iteration: u64,
    of: impl Fn(&dyn Comm, usize, &[Layout]) -> Vec<Tensor> + Sync,
) -> PathBuf {
    let saved = ranks(world, |comm| {
        let all = layouts();
        let tensors: Vec<_> = all.iter().enumerate().map(|(set, (_, layouts))| of(comm, set, layouts)).collect();
        let sets = all
            .iter()
            .zip(tensors)
            .map(|((name, layouts), shards)| TensorSet { name: (*name).into(), layouts, shards })
            .collect();
        let saved = Contents {
            sets,
            adapter_config: Some(json!({ "r": 3, "lora_alpha": 6 })),
            base: None,
            ties: true,
            vision: None,
            model_files: &run.join("model"),
            unfinished: None,
            estimator: Some(&[7; 64]),
        };
        let (moment, retention) = (Moment::iteration(iteration), Retention { keep: 2, best: None, good: None });
        let save = Save { moment, contents: &saved, retention, background: false };
        Checkpoints::new(run).save(comm, save, &json!({ "iteration": iteration }))
    });
    for result in saved {
        result.expect("saved");
    }
    run.join(format!("checkpoints/iteration-{iteration:06}"))
}

/// Loads a rank's shards of a set from a checkpoint.
fn load(comm: &dyn Comm, dir: &Path, name: &str, layouts: &[Layout]) -> Vec<Tensor> {
    let shards: Vec<_> = layouts.iter().map(|l| empty(&l.partition(comm.world()))).collect();
    let manifest = Manifest::read(dir).expect("a manifest");
    let files = open(&manifest, dir, name, layouts).expect("right files");
    files.fill(layouts, comm, &shards).expect("filled");
    shards
}

#[test]
fn any_number_of_ranks_reads_what_any_other_wrote() {
    let run = run_dir();
    let first = save(run.path(), 4, 1, shards);
    for (rank, name) in [(1, "model.layers.0.input_layernorm.weight\""), (2, "model.embed_tokens.weight[250..500]\"")] {
        let file = fs::read(first.join(format!("policy-0000{rank}-of-00004.safetensors"))).expect("read");
        assert!(String::from_utf8_lossy(&file).contains(name), "whole ones, and pieces");
    }

    // Through 1, 2 and 4 ranks and back again, each saving what it loaded of the one before.
    let mut dir = first.clone();
    for (number, world) in [1, 2, 4, 2, 1, 4].into_iter().enumerate() {
        let same = ranks(world, |comm| {
            layouts().iter().enumerate().all(|(set, (name, layouts))| {
                bits(&load(comm, &dir, name, layouts)) == bits(&shards(comm, set, layouts))
            })
        });
        assert!(same.into_iter().all(|same| same), "{} at world {world}", dir.display());
        let from = dir.clone();
        dir = save(run.path(), world, number as u64 + 2, |comm, set, layouts| {
            load(comm, &from, super::tests::layouts()[set].0, layouts)
        });
    }
    // The last was written by 4 ranks as the first was.
    let one = save(run.path(), 1, 8, shards);
    let model = load_model(&dir, Output::Tokens, Kind::Float, Device::Cpu).expect("loaded");
    let all = layouts();
    let [whole, trained] = [0, 1]
        .map(|set| all[set].1.iter().enumerate().map(|(unit, layout)| flat(set, unit, layout)).collect::<Vec<_>>());
    assert!(bits(model.units.held()) == bits(&whole));
    let blocks = unit_weights::block_layouts(&model.config);
    let adapters = Adapters::of(&blocks, trained, &Lora::of_all(3, 6.0));

    for kind in [Kind::Float, Kind::BFloat16] {
        let exported = |from: &Path, to: &str| {
            let to = run.path().join(format!("{to}-{kind:?}"));
            for folder in ["policy", "critic", "adapter"] {
                fs::create_dir_all(to.join(folder)).expect("made");
            }
            export(from, &to.join("policy"), Output::Tokens, kind).expect("exported");
            export(from, &to.join("critic"), Output::Value, kind).expect("exported");
            export_adapter(from, &to.join("adapter")).expect("exported");
            let file = |name: &str| fs::read(to.join(name)).expect("read");
            [
                file("policy/model.safetensors"),
                file("critic/model.safetensors"),
                file("adapter/adapter_model.safetensors"),
            ]
        };
        assert!(exported(&dir, "four") == exported(&one, "one"), "{kind:?}");
        let model = crate::model::weights::load(&run.path().join(format!("four-{kind:?}/policy")), kind, Device::Cpu);
        // Exports have the adapters merged.
        let merged = whole.iter().enumerate().map(|(unit, flat)| match unit {
            0 => flat.to_kind(kind),
            block => adapters.merged(block - 1, &all[0].1[block], flat, &Ranks::solo(Device::Cpu)).to_kind(kind),
        });
        assert!(bits(model.expect("loaded").units.held()) == bits(&merged.collect::<Vec<_>>()), "{kind:?}");
    }
}

#[test]
fn every_damage_is_found_before_a_tensor_is_used() {
    let run = run_dir();
    for world in [1, 2] {
        let checkpoints = Checkpoints::new(run.path());
        let before = save(run.path(), world, 1, shards);
        let dir = save(run.path(), world, 2, shards);
        let manifest = verify(&dir).expect("whole");
        let newest = |want: &Path, names: &str| {
            let found = ranks(2, |comm| {
                let mut warnings = String::new();
                let found = checkpoints.newest(comm, |line| warnings += line).expect("found");
                (found, warnings)
            });
            assert!(found.iter().all(|(found, _)| found.as_deref() == Some(want)), "{found:?}");
            assert!(found[0].1.contains(names) && found[1].1.is_empty(), "{found:?}");
        };
        newest(&dir, "");
        let mut files: Vec<_> = fs::read_dir(&dir).expect("listed").flatten().map(|entry| entry.path()).collect();
        files.sort();
        assert_eq!(files.len(), 4 * world + 8, "{files:?}");
        let mut damages = 0;
        let mut refused = |what: &str, seen: bool| {
            assert!(seen, "{what} was not seen");
            damages += 1;
        };
        for path in &files {
            let sound = fs::read(path).expect("read");
            let name = path.file_name().expect("a name").to_string_lossy().to_string();
            // Every bit of the manifest, every byte of other small files; the header and a sample of large ones.
            let step = |at: usize| if sound.len() < 2_500 { 1 } else { 5 + at / 50 };
            let bits = if name == MANIFEST { 0..8 } else { 3..4 };
            let mut at = 0;
            while at < sound.len() {
                for bit in bits.clone() {
                    let mut damaged = sound.clone();
                    damaged[at] ^= 1 << bit;
                    fs::write(path, &damaged).expect("written");
                    let whole = if name == MANIFEST { verify(&dir).map(drop) } else { manifest.check(&dir, &name) };
                    refused(&format!("{name}: bit {bit} of byte {at}"), whole.is_err());
                }
                at += step(at);
            }
            newest(&before, &name);
            for length in [0, 1, 7, sound.len() / 2, sound.len() - 1] {
                fs::write(path, &sound[..length]).expect("written");
                refused(&format!("{name}: {length} bytes"), verify(&dir).is_err());
            }
            fs::write(path, [&sound[..], &[0]].concat()).expect("written");
            refused(&format!("{name}: a byte more"), verify(&dir).is_err());
            fs::remove_file(path).expect("removed");
            refused(&format!("{name}: missing"), verify(&dir).is_err());
            fs::write(path, &sound).expect("written");
        }
        for pair in files.windows(2) {
            let swap = || {
                let aside = pair[0].with_extension("aside");
                for (from, to) in [(&pair[0], &aside), (&pair[1], &pair[0]), (&aside, &pair[1])] {
                    fs::rename(from, to).expect("renamed");
                }
            };
            swap();
            refused(&format!("{pair:?} swapped"), verify(&dir).is_err());
            swap();
        }
        verify(&dir).expect("whole again");
        assert!(damages > 1_000, "{damages}");
        println!("world {world}: {damages} damages");
        fs::remove_dir_all(run.path().join("checkpoints")).expect("removed");
    }
}

/// Files with the right checksums that do not belong together.
#[test]
fn what_is_missing_or_there_twice_is_named() {
    let run = run_dir();
    let dir = save(run.path(), 2, 1, shards);
    let (name, layouts) = &layouts()[0];
    let [first, second] = [1, 2].map(|rank| format!("{name}-{rank:05}-of-00002.safetensors"));
    let refusal = || {
        let files = Manifest::read(&dir).expect("a manifest");
        message(&open(&files, &dir, name, layouts).err().expect("refused"))
    };
    let sound = [&first, &second].map(|file| fs::read(dir.join(file)).expect("read"));
    fs::write(dir.join(&second), &sound[0]).expect("written");
    let text = refusal();
    assert!(text.contains(&second) && text.contains("too"), "{text}");
    let none = [&2_u64.to_le_bytes()[..], b"{}"].concat();
    fs::write(dir.join(&second), &none).expect("written");
    let text = refusal();
    assert!(text.contains("the elements 500 to 1000 of tensor model.embed_tokens.weight are missing"), "{text}");
    fs::remove_file(dir.join(&first)).expect("removed");
    assert!(refusal().contains(&first));
}

/// The error of a rank that cannot write reaches all ranks.
#[test]
fn ranks_fail_together_and_leave_the_checkpoint_before() {
    let run = run_dir();
    let dir = save(run.path(), 2, 1, shards);
    let results = ranks(2, |comm| {
        let (name, layouts) = &layouts()[0];
        let tensors = shards(comm, 0, layouts);
        let name = if comm.rank() == 1 { "no/such/folder" } else { name };
        let sets = vec![TensorSet { name: name.into(), layouts, shards: tensors }];
        let saved = Contents {
            sets,
            adapter_config: None,
            base: None,
            ties: true,
            vision: None,
            model_files: &run.path().join("model"),
            unfinished: None,
            estimator: None,
        };
        let retention = Retention { keep: 1, best: None, good: None };
        let save = Save { moment: Moment::iteration(2), contents: &saved, retention, background: false };
        let saved = Checkpoints::new(run.path()).save(comm, save, &json!({}));
        let error = saved.expect_err("one rank failed");
        message(&error)
    });
    assert_eq!(results[0], results[1]);
    assert!(results[0].contains("rank 1") && results[0].contains("no/such/folder"), "{}", results[0]);
    let mut left: Vec<_> =
        fs::read_dir(run.path().join("checkpoints")).expect("listed").flatten().map(|e| e.path()).collect();
    left.sort();
    assert_eq!(left, [dir.clone(), dir.with_file_name(LATEST)]);
    verify(&dir).expect("whole");
    assert_eq!(Checkpoints::new(run.path()).newest(&SOLO, |line| panic!("{line}")).expect("found"), Some(dir));
}

/// Saves at rank 0 with the given best checkpoint; returns the names beside it, links with their targets.
fn save_among(run: &Path, moment: Moment, best: Option<Moment>) -> Vec<String> {
    let all = layouts();
    let (name, layouts) = &all[0];
    let sets = vec![TensorSet { name: (*name).into(), layouts, shards: shards(&SOLO, 0, layouts) }];
    let saved = Contents {
        sets,
        adapter_config: None,
        base: None,
        ties: true,
        vision: None,
        model_files: &run.join("model"),
        unfinished: None,
        estimator: None,
    };
    let retention = Retention { keep: 2, best, good: None };
    let save = Save { moment, contents: &saved, retention, background: false };
    Checkpoints::new(run).save(&SOLO, save, &json!({})).expect("saved");
    let described = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        fs::read_link(&path).map_or(name.clone(), |target| format!("{name} -> {}", target.display()))
    };
    let entries = fs::read_dir(run.join("checkpoints")).expect("listed").flatten();
    let mut names: Vec<_> = entries.map(|entry| described(entry.path())).collect();
    names.sort();
    names
}

#[test]
fn the_best_checkpoint_outlives_newer_ones() {
    let run = run_dir();
    let checkpoints = run.path().join("checkpoints");
    fs::create_dir(&checkpoints).expect("made");
    fs::write(checkpoints.join("note.tmp"), "the user's").expect("written");
    save_among(run.path(), Moment::warm_start(60), None);
    save_among(run.path(), Moment::iteration(1), Some(Moment::iteration(1)));
    for moment in [Moment::iteration(2), Moment::update(2, 5), Moment::iteration(3)] {
        save_among(run.path(), moment, Some(Moment::iteration(1)));
    }
    let kept = save_among(run.path(), Moment::iteration(4), Some(Moment::iteration(1)));
    let links = ["best -> iteration-000001", "iteration-000001", "iteration-000003", "iteration-000004"];
    assert_eq!(kept, [&links[..], &["latest -> iteration-000004", "note.tmp"]].concat());
    // A run that resumed from an older checkpoint does not know a best one, and its newer ones are damaged.
    let kept = save_among(run.path(), Moment::iteration(2), None);
    assert_eq!(kept, ["iteration-000001", "iteration-000002", "latest -> iteration-000002", "note.tmp"]);
}

/// Checkpoints from before manifests named the program; Python's json and hashlib made this one.
const WITHOUT_WRITER: &str = r#"{
  "world": 1,
  "files": {
    "state.json": {
      "bytes": 2,
      "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    }
  },
  "sha256": "781f59f8e21ebd1f6a9cd584bc39d356331836a8d16e2838f4e002d574ca27be"
}
"#;

#[test]
fn a_manifest_names_the_program_and_older_ones_are_read() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("state.json"), "{}").expect("written");
    fs::write(dir.path().join(MANIFEST), WITHOUT_WRITER).expect("written");
    let old = verify(dir.path()).expect("whole");
    assert_eq!(old.writer, None);

    Manifest::new(1, old.files).and_then(|new| new.write(dir.path())).expect("written");
    let writer = verify(dir.path()).expect("whole").writer.expect("a writer");
    assert_eq!((writer.nestor.as_str(), writer.commit.as_deref()), (VERSION, COMMIT));
}
