//! The device of a rank and the links between ranks: measured or published rates, and assumptions.

use nestor_args::Gpu;
use nestor_torch::host;
use serde::Serialize;
use tch::{Device, Kind};

use crate::run::speed::product_rate;

/// Rates and sizes of one rank's device.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Hardware {
    pub gpu: Gpu,
    /// Memory in bytes; on a CPU the machine's free memory less what stays clear ([`host::usable`]), which its ranks share.
    pub memory: u64,
    /// FLOP/s of large matrix products.
    pub flops: f64,
    /// Bytes per second read from memory.
    pub memory_rate: f64,
    /// Bytes per second between ranks of one node, each way.
    pub link_rate: f64,
    /// Bytes per second between the host's memory and the device, each way.
    pub host_rate: f64,
    /// Bytes per second that each rank adds to its node's network connection.
    pub network_rate: f64,
    /// Seconds of a collective independent of its size: once, per hop inside a node, and per hop between nodes.
    pub latency: [f64; 3],
    /// Seconds to launch one block's kernels in a decoding pass.
    pub launch: f64,
    /// Bytes of the process before it holds a tensor: code and heap of libtorch, on a GPU its context.
    pub process: u64,
    /// Bytes that the allocator cannot use.
    pub fragments: u64,
}

/// Rate of a whole pass as a share of the rate of matrix products. On a CPU small networks reached 25 to 59 % (`update/mfu`).
const CPU_EFFICIENCY: f64 = 0.4;

/// The same on a GPU. An H200 reached 66 % in an update of 19,200 tokens that recomputed nothing, 71 % in one that recomputed
/// all, and 67 % in log-probs of Qwen2.5-1.5B (docs/gpu.md); 49 % in micro-batches of 4,800 tokens.
const GPU_EFFICIENCY: f64 = 0.65;

impl Hardware {
    /// The rates of a device for a compute type. A CPU's cores and memory are all of this machine's; a product of some milliseconds
    /// measures them.
    pub fn of(gpu: Gpu, kind: Kind) -> Self {
        let wide = kind == Kind::Float;
        // Measured: 798 and 790 TFLOP/s of bfloat16 products, 3.0 and 4.3 TB/s. float32 products use no tensor cores.
        let card = |memory, flops, memory_rate| Self {
            gpu,
            memory,
            flops: GPU_EFFICIENCY * if wide { 60e12 } else { flops },
            memory_rate,
            link_rate: 450e9,
            host_rate: 50e9,
            network_rate: 50e9,
            // From NCCL's tuning model for rings with the protocol Simple.
            latency: [8.4e-6, 3.4e-6, 14e-6],
            launch: 12.0 * 4.5e-6,
            process: 2_000_000_000,
            fragments: 2_000_000_000,
        };
        match gpu {
            Gpu::H100 => card(80_000_000_000, 798e12, 3.0e12),
            Gpu::H200 => card(141_000_000_000, 790e12, 4.3e12),
            Gpu::Cpu => Self {
                gpu,
                // This process gives its own back before a run.
                memory: host::usable(host::available_bytes().unwrap_or(0) + host::own_bytes().unwrap_or(0)),
                flops: CPU_EFFICIENCY * product_rate(Device::Cpu, kind, 3),
                memory_rate: 6e9,
                link_rate: 1e9,
                host_rate: 6e9,
                network_rate: 1e9,
                latency: [100e-6, 50e-6, 50e-6],
                launch: 100e-6,
                // VmHWM of `nestor bench score` and `update` on the tiny shape: 501 and 523 MB.
                process: 520_000_000,
                fragments: 0,
            },
        }
    }

    /// The assumptions behind these rates, one a line.
    pub fn assumptions(&self) -> Vec<String> {
        match self.gpu {
            Gpu::Cpu => vec![
                format!(
                    "passes run at {:.0} % of the {:.0} GFLOP/s that a product reaches here now, memory at 6 GB/s, links of 1 \
                     GB/s: orders of magnitude, since machines differ",
                    100.0 * CPU_EFFICIENCY,
                    self.flops / CPU_EFFICIENCY / 1e9
                ),
                "520 MB for the process before it holds a tensor (measured)".into(),
            ],
            Gpu::H100 | Gpu::H200 => vec![
                format!("passes run at {:.0} % of 798 TFLOP/s (H200: 790; float32: 60)", 100.0 * GPU_EFFICIENCY),
                "memory reads at 3.0 TB/s (H200: 4.3); a decoding pass takes at least 12 launches of 4.5 us a block".into(),
                "links of 450 GB/s each way inside a node, 50 GB/s per GPU between nodes; 50 GB/s each way between a GPU and its host's pinned \
                 memory (PCIe 5, not measured)"
                    .into(),
                "a collective takes 8.4 us, plus 3.4 us per hop inside a node and 14 us per hop between nodes (NCCL's \
                 model of its rings)"
                    .into(),
                "2 GB for CUDA context, libraries and NCCL's buffers, and 2 GB that the allocator cannot use (not measured)"
                    .into(),
            ],
        }
    }
}

/// The ranks and their distribution over nodes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cluster {
    pub ranks: u64,
    /// Ranks on one node.
    pub per_node: u64,
}

impl Cluster {
    fn nodes(self) -> u64 {
        self.ranks.div_ceil(self.per_node)
    }

    /// Bytes that each rank sends (and receives) to gather or reduce `bytes` over all ranks in a ring.
    pub fn share(self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.ranks - 1) / u128::from(self.ranks)) as u64
    }

    /// Seconds to gather or reduce `bytes` in `calls` calls. Data that enters a node passes its connection once.
    pub fn seconds(self, hardware: &Hardware, bytes: u64, calls: u64) -> f64 {
        if self.ranks == 1 {
            return 0.0;
        }
        let rate = match self.nodes() {
            1 => hardware.link_rate,
            _ => hardware.link_rate.min(hardware.network_rate * self.per_node as f64),
        };
        let [call, hop, far] = hardware.latency;
        let between = self.nodes() - 1;
        let near = self.ranks - 1 - between;
        self.share(bytes) as f64 / rate + calls as f64 * (call + near as f64 * hop + between as f64 * far)
    }
}
