//! What a rank computes on and how ranks are joined: rates that were measured or published, and assumptions.

use serde::Serialize;
use tch::Kind;

/// Where a plan's ranks compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
pub enum Gpu {
    /// NVIDIA H100, 80 GB
    #[value(name = "h100-80gb")]
    #[serde(rename = "h100-80gb")]
    H100,
    /// NVIDIA H200, 141 GB
    #[value(name = "h200-141gb")]
    #[serde(rename = "h200-141gb")]
    H200,
    /// This machine's CPU and free memory
    #[serde(rename = "cpu")]
    Cpu,
}

/// Rates and sizes of one rank.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Hardware {
    /// Which.
    pub gpu: Gpu,
    /// Its memory in bytes, the machine's free memory on a CPU (that all ranks on it share).
    pub memory: u64,
    /// Multiplications and additions a second that large matrix products reach.
    pub flops: f64,
    /// Bytes a second read from memory.
    pub memory_rate: f64,
    /// Bytes a second between ranks of one node, each way.
    pub link_rate: f64,
    /// Bytes a second that a rank adds to its node's connection to others.
    pub network_rate: f64,
    /// Seconds that a collective takes whatever its size: once, for each hop inside a node, for each between nodes.
    pub latency: [f64; 3],
    /// Seconds in which a block's kernels of a decoding pass are launched.
    pub launch: f64,
    /// The process before it holds a tensor: code and heap of libtorch, on a GPU its context.
    pub process: u64,
    /// Memory that the allocator cannot use.
    pub fragments: u64,
}

/// Share of the measured rate of matrix products that a whole pass reaches on a GPU.
pub const EFFICIENCY: f64 = 0.4;

impl Gpu {
    /// The hardware when computing in this type.
    pub fn hardware(self, kind: Kind) -> Hardware {
        let wide = kind == Kind::Float;
        // 798 and 790 TFLOP/s of bfloat16 products, 3.0 and 4.3 TB/s were measured; a float32 product has no tensor cores.
        let card = |memory, flops, memory_rate| Hardware {
            gpu: self,
            memory,
            flops: EFFICIENCY * if wide { 60e12 } else { flops },
            memory_rate,
            link_rate: 450e9,
            network_rate: 50e9,
            // NCCL's own tuning model, ring and protocol Simple.
            latency: [8.4e-6, 3.4e-6, 14e-6],
            launch: 12.0 * 4.5e-6,
            process: 2_000_000_000,
            fragments: 2_000_000_000,
        };
        match self {
            Self::H100 => card(80_000_000_000, 798e12, 3.0e12),
            Self::H200 => card(141_000_000_000, 790e12, 4.3e12),
            Self::Cpu => Hardware {
                gpu: self,
                memory: nestor_torch::fused::free_bytes(tch::Device::Cpu).unwrap_or(0),
                flops: if wide { 140e9 } else { 400e9 },
                memory_rate: 6e9,
                link_rate: 1e9,
                network_rate: 1e9,
                latency: [100e-6, 50e-6, 50e-6],
                launch: 0.0,
                // VmHWM of `nestor bench score` and `update` on the tiny shape: 501 and 523 MB.
                process: 520_000_000,
                fragments: 0,
            },
        }
    }

    /// Its assumptions, one a line.
    pub fn assumptions(self) -> Vec<String> {
        match self {
            Self::Cpu => vec![
                "matrix products at 400 GFLOP/s (float32 140), memory at 6 GB/s, ranks joined at 1 GB/s: orders of \
                 magnitude, machines differ"
                    .into(),
                "0.52 GB of the process before it holds a tensor (measured)".into(),
            ],
            Self::H100 | Self::H200 => vec![
                format!("passes reach {:.0} % of 798 TFLOP/s (H200: 790; float32: 60)", 100.0 * EFFICIENCY),
                "memory read at 3.0 TB/s (H200: 4.3); a decoding pass takes at least 12 launches of 4.5 us a block".into(),
                "ranks of a node joined at 450 GB/s each way, nodes at 50 GB/s for each GPU in them".into(),
                "a collective takes 8.4 us, and 3.4 us for each hop inside a node, 14 us between nodes (NCCL's model of \
                 its rings)"
                    .into(),
                "2 GB of CUDA context, libraries and NCCL's buffers, 2 GB that the allocator cannot use (not measured)"
                    .into(),
            ],
        }
    }
}

/// Ranks on nodes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cluster {
    /// Ranks.
    pub ranks: u64,
    /// Ranks on one node.
    pub per_node: u64,
}

impl Cluster {
    fn nodes(self) -> u64 {
        self.ranks.div_ceil(self.per_node)
    }

    /// Bytes that each rank sends, and receives, when `bytes` are gathered or reduced over all ranks in a ring.
    pub fn share(self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.ranks - 1) / u128::from(self.ranks)) as u64
    }

    /// Seconds in which `bytes` are gathered or reduced in so many calls. What enters a node passes its connection once.
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
