//! The lists of operations that the ledger of docs/performance.md computes from, with own kernels in the emulator. A
//! program of its own, since a process that has kernels uses them everywhere.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Once;

use nestor::engine::Decode;
use nestor_model::model::Config;
use nestor_recipe::Recompute;
use nestor_torch::kernels;
use nestor_torch::ops::Ops;
use nestor_torch::record::Operation;

#[path = "../all/support/dispatched.rs"]
#[allow(dead_code)] // the other tests of operations use the rest
mod dispatched;
#[path = "../../../torch/tests/shim/facts.rs"]
#[allow(dead_code)] // the test of the machine code uses the rest
mod facts;
mod launches;

use dispatched::{DIM, HEADS, KV_HEADS, config, decode, model, of_config, pass, pass_alike};

fn emulate() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/emulator.sh");
        let built = Command::new(script).output().expect("bash");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        kernels::emulate(Some(Path::new(String::from_utf8_lossy(&built.stdout).trim()))).expect("the emulator");
    });
}

/// The lists that `scripts/gpu/ledger.py` computes from: a block, and all else, the last block included. Every size of this network is another number, so that the ledger reads
/// the meaning of each tensor's sizes off them.
#[test]
fn the_ledgers_lists_are_those_of_the_program() {
    emulate();
    let of = |blocks| {
        let sizes = config("tiny", blocks);
        let heads = Config { num_attention_heads: 6, num_key_value_heads: 2, head_dim: Some(64), ..sizes };
        of_config(Config { vocab_size: 1000, hidden_size: 200, intermediate_size: 176, ..heads }, Ops::Generic)
    };
    let lists: serde_json::Map<String, serde_json::Value> = [
        ("decode", [1, 2].map(|blocks| decode(&of(blocks), 16, 40, Decode::Recorded))),
        ("update, nothing recomputed", [2, 3].map(|blocks| pass(of(blocks), &[20, 33, 9], Recompute::None).0)),
        ("update, all recomputed", [2, 3].map(|blocks| pass(of(blocks), &[20, 33, 9], Recompute::All).0)),
    ]
    .into_iter()
    .map(|(work, [fewer, more])| {
        let block = beyond(&more, &fewer);
        // The last block of an update computes only the rows that are read, so it counts with the rest.
        let rest = if work == "decode" { fewer } else { beyond(&fewer, &block) };
        let lines =
            |list: &[Operation]| list.iter().map(|it| format!("{} {}", it.name, it.tensors)).collect::<Vec<_>>();
        (work.to_owned(), serde_json::json!({ "block": lines(&block), "rest": lines(&rest) }))
    })
    .collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/gpu/operations.json");
    let text = serde_json::to_string_pretty(&lists).expect("JSON") + "\n";
    if std::env::var_os("NESTOR_WRITE_DOCS").is_some() {
        return std::fs::write(path, text).expect("written");
    }
    let kept = std::fs::read_to_string(path).expect("the ledger's lists");
    assert!(kept == text, "{path} is stale: run NESTOR_WRITE_DOCS=1 cargo test --release --workspace --test ledger");
}

/// Sequences that begin alike launch the same operations for a block, and copy no keys beyond a row for each of their tokens.
#[test]
fn a_common_beginning_launches_nothing_more() {
    emulate();
    let lengths = [60, 50, 45];
    for shape in ["tiny", "qwen3-tiny"] {
        for recompute in [Recompute::None, Recompute::All] {
            let block = |common| {
                let [fewer, more] =
                    [2, 3].map(|blocks| pass_alike(model(shape, blocks, Ops::Generic), &lengths, common, recompute).0);
                beyond(&more, &fewer)
            };
            let names = |list: &[Operation]| {
                let mut counts = BTreeMap::new();
                list.iter().for_each(|operation| *counts.entry(operation.name.clone()).or_insert(0) += 1);
                counts
            };
            let (alike, apart) = (block(40), block(0));
            assert_eq!(names(&alike), names(&apart), "{shape}, {recompute:?}");
            // Queries of the distinct tokens, then keys and values of all.
            let [own, all] = [40 + lengths.iter().map(|n| n - 40).sum::<usize>(), lengths.iter().sum()];
            let size = |rows: usize, heads: i64| format!("w BFloat16 {rows} {heads} {DIM}");
            let want = [size(own, HEADS), size(all, KV_HEADS), size(all, KV_HEADS)];
            for rotation in alike.iter().filter(|it| it.name == "nestor::rotate") {
                let written: Vec<&str> = rotation.tensors.split(';').filter(|it| it.starts_with('w')).collect();
                assert_eq!(written, want, "{shape}, {recompute:?}");
            }
        }
    }
}

/// The operations that are not among `others`, each of which counts once.
fn beyond(all: &[Operation], others: &[Operation]) -> Vec<Operation> {
    let mut others: Vec<&Operation> = others.iter().collect();
    let mut rest = Vec::new();
    for operation in all.iter().rev() {
        match others.iter().rposition(|&other| other == operation) {
            Some(place) => drop(others.remove(place)),
            None => rest.push(operation.clone()),
        }
    }
    rest.reverse();
    rest
}
