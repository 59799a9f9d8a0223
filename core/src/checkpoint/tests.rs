//! Ranks are threads of one process, joined over loopback. Slices of a partition are small in tests, so that the tensors
//! of these networks are cut into many pieces.

use std::net::TcpListener;
use std::time::Duration;

use nestor_c10d::Backend;
use tch::{Device, Kind};

use super::*;
use crate::dist::{C10d, Place, Solo};
use crate::model::config::Output;
use crate::model::stored::{Expected, TensorFiles, to_bytes};
use crate::model::{new, qwen2};
use crate::shard::{Adapters, Partition};

/// What every rank gives, in their order.
fn ranks<T: Send>(world: usize, play: impl Fn(&dyn Comm) -> T + Sync) -> Vec<T> {
    if world == 1 {
        return vec![play(&Solo { device: Device::Cpu })];
    }
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
    let (host, prefix) = ("127.0.0.1".to_string(), "test".to_string());
    let place =
        |rank| Place { rank, world, local_rank: rank, host: host.clone(), port, prefix: prefix.clone(), served: false };
    std::thread::scope(|scope| {
        let (place, play) = (&place, &play);
        let join = move |rank| {
            let comm = C10d::join(Backend::Gloo, &place(rank), Device::Cpu, Duration::from_secs(60)).expect("joined");
            play(&comm)
        };
        let threads: Vec<_> = (0..world).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

/// Whole tensors of a checkpoint by set, with bits of all kinds, and a model folder.
struct Whole {
    run: tempfile::TempDir,
    config: Config,
    sets: Vec<(&'static str, Vec<Layout>, Vec<Tensor>)>,
}

// SAFETY of threads: tensors are only read while ranks run.
unsafe impl Sync for Whole {}
