//! Launches of a training iteration in the widths of real models, against the limits of each architecture's machine code.
//!
//! The emulator runs any launch. A GPU refuses a block with too many registers or too much shared memory, and reads an
//! argument in the size that the kernel declares, whatever the host passes.

use nestor::engine::Decode;
use nestor_model::model::Config;
use nestor_recipe::Recompute;
use nestor_torch::kernels::{self, Launch};
use nestor_torch::ops::Ops;

use super::dispatched::{decode, differentiated, of_config, prepared};
use super::emulate;
use super::facts::facts;

/// Registers of a multiprocessor.
const REGISTERS: u32 = 65_536;
/// Registers come to a warp in pieces of this many for each thread.
const REGISTERS_AT_ONCE: u32 = 8;
/// Bytes of shared memory that a block may have without asking for more. No launch asks.
const SHARED: u32 = 48 << 10;
/// Blocks in the second dimension.
const MOST_BLOCKS_Y: u32 = 65_535;

#[test]
fn launches_keep_to_the_limits_of_their_kernels() {
    emulate();
    let mut all: Vec<Launch> = Vec::new();
    for shape in ["0.5b", "1.5b"] {
        let real = Config::shape(shape).expect("a shape");
        let config = Config { num_hidden_layers: 2, vocab_size: 3000, ..real };
        let model = || of_config(config.clone(), Ops::Generic);
        all.extend(kernels::launches(|| {
            decode(&model(), 3, 90, Decode::Recorded);
            for common in [0, 20] {
                let (mut policy, packed) = prepared(model(), &[40, 30], common);
                differentiated(&mut policy, &packed, Recompute::All, || ());
                policy.step(1e-4, 1.0).expect("a step");
            }
        }));
    }
    let of = |part: &str| all.iter().filter(|launch| launch.kernel.starts_with(part)).count();
    for part in
        ["rms_norm", "add_norm", "rotate_gather", "rotate_grad", "rotate_into_cache", "silu_mul", "head_gradient"]
    {
        assert!(of(part) > 0, "no launch of {part}");
    }
    for part in ["paged_attention_64", "paged_attention_128", "sample_token", "adamw", "column_sums"] {
        assert!(of(part) > 0, "no launch of {part}");
    }
    for (architecture, facts) in facts() {
        for launch in &all {
            let kernel = &facts[&launch.kernel];
            let registers = kernel.registers.next_multiple_of(REGISTERS_AT_ONCE);
            let fits = launch.threads % 32 == 0 && (32..=1024).contains(&launch.threads);
            assert!(fits, "{architecture}: threads of {launch:?}");
            assert!(registers * launch.threads <= REGISTERS, "{architecture}: {registers} registers of {launch:?}");
            assert!(kernel.shared + launch.shared <= SHARED, "{architecture}: shared memory of {launch:?}");
            assert!(launch.grid[0] < 1 << 31 && launch.grid[1] <= MOST_BLOCKS_Y, "{architecture}: grid of {launch:?}");
            assert_eq!(launch.arguments, kernel.parameters, "{architecture}: arguments of {launch:?}");
        }
    }
}
