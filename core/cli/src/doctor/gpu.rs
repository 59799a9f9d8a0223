//! NVIDIA's driver, its GPUs, and NCCL.

use nvml_wrapper::Nvml;

use super::Check;
use super::torch::Cuda;

/// The least driver of each CUDA release (NVIDIA's table of minor-version compatibility).
const LEAST_DRIVER: [(u64, u64); 3] = [(11, 450), (12, 525), (13, 580)];

/// The driver's view of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Driver {
    version: String,
    /// Name and bytes of memory.
    gpus: Vec<(String, u64)>,
}

/// Checks driver, GPUs and NCCL against libtorch's CUDA.
pub fn checks(cuda: Option<&Cuda>) -> Vec<Check> {
    let driver = Nvml::init().ok().map(|nvml| {
        let gpus = (0..nvml.device_count().unwrap_or(0)).filter_map(|index| nvml.device_by_index(index).ok());
        let gpus = gpus.map(|gpu| {
            (gpu.name().unwrap_or_else(|_| "unnamed GPU".into()), gpu.memory_info().map_or(0, |memory| memory.total))
        });
        Driver { version: nvml.sys_driver_version().unwrap_or_default(), gpus: gpus.collect() }
    });
    let has_device = std::path::Path::new("/dev/nvidiactl").exists();
    judge(driver, cuda.unwrap_or(&Cuda::default()), has_device)
}

fn judge(driver: Option<Driver>, cuda: &Cuda, has_device: bool) -> Vec<Check> {
    let wheel = cuda.wheel.as_deref();
    let Some(driver) = driver.filter(|driver| !driver.gpus.is_empty()) else {
        return vec![if has_device {
            Check::fail(
                "GPU",
                "there is an NVIDIA device, but its driver's library (NVML) shows no GPU",
                "install the driver's user libraries (libnvidia-ml.so.1); in a container: docker run --gpus all",
            )
        } else {
            Check::ok("GPU", "no NVIDIA driver: Nestor computes on the CPU")
        }];
    };
    let names = driver.gpus.iter().map(|(name, bytes)| format!("{name} {:.0} GB", *bytes as f64 / 1e9));
    let names = names.collect::<Vec<_>>().join(", ");
    let shown = format!("driver {}, {names}", driver.version);
    let number = |text: &str| text.split('.').next().and_then(|major| major.parse::<u64>().ok());
    let least = wheel.and_then(number).and_then(|release| LEAST_DRIVER.iter().find(|(known, _)| *known == release));
    let gpu = match (wheel, least, cuda.devices) {
        (None, ..) => Check::warn(
            "GPU",
            format!("{shown}; libtorch has no CUDA"),
            "install torch with CUDA to use the GPU: pip install torch==2.11.0 from PyPI",
        ),
        (Some(wheel), Some((_, least)), _) if number(&driver.version).is_some_and(|version| version < *least) => {
            Check::fail(
                "GPU",
                format!("{shown}; libtorch's CUDA {wheel} needs driver {least} or newer"),
                format!("update the driver to {least} or newer, or set `device: cpu`"),
            )
        }
        (Some(wheel), _, Some(0)) => Check::fail(
            "GPU",
            format!("{shown}; libtorch (CUDA {wheel}) sees none of them"),
            "look at CUDA_VISIBLE_DEVICES and at `nvidia-smi`; in a container: docker run --gpus all",
        ),
        (Some(wheel), ..) if cuda.kernels.iter().any(|code| code == "none") => Check::warn(
            "GPU",
            format!("{shown}; libtorch's CUDA {wheel}; Nestor's kernels do not load"),
            "it works with libtorch's operations, several times as slowly; unset NESTOR_KERNELS, or use a GPU of compute \
             capability 8.0 (A100, RTX 30) or newer: nestor bench kernels gives the reason",
        ),
        (Some(wheel), ..) => {
            Check::ok("GPU", format!("{shown}; libtorch's CUDA {wheel}; kernels: {}", cuda.kernels.join(", ")))
        }
    };
    let nccl = match &cuda.nccl {
        Some(version) => Check::ok("NCCL", format!("{version}, for several GPUs")),
        None if driver.gpus.len() == 1 => Check::ok("NCCL", "not found beside libtorch; one GPU needs none"),
        None => Check::warn(
            "NCCL",
            "not found beside libtorch, and there are several GPUs",
            "pip install nvidia-nccl-cu13, unless libtorch has NCCL built in: try nestor launch --nproc 2 bench collective --backend nccl",
        ),
    };
    vec![gpu, nccl]
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn driver_and_libtorch_must_fit() {
        let driver = |version: &str| Driver { version: version.into(), gpus: vec![("H100".into(), 80_000_000_000)] };
        let cuda = |wheel: Option<&str>, devices| Cuda {
            wheel: wheel.map(Into::into),
            devices,
            kernels: vec!["sm_90a".into()],
            nccl: None,
        };
        let old = Cuda { kernels: vec!["none".into()], ..cuda(Some("13.0"), Some(1)) };
        for (driver, cuda, has_device, wanted, part) in [
            (None, cuda(Some("13.0"), Some(0)), false, Verdict::Ok, "CPU"),
            (None, cuda(Some("13.0"), Some(0)), true, Verdict::Fail, "NVML"),
            (Some(driver("580.65.06")), cuda(Some("13.0"), Some(1)), true, Verdict::Ok, "H100 80 GB"),
            (Some(driver("580.65.06")), cuda(Some("13.0"), Some(1)), true, Verdict::Ok, "kernels: sm_90a"),
            (Some(driver("580.65.06")), old, true, Verdict::Warn, "do not load"),
            (Some(driver("570.86.10")), cuda(Some("13.0"), Some(0)), true, Verdict::Fail, "needs driver 580"),
            (Some(driver("570.86.10")), cuda(Some("12.8"), Some(1)), true, Verdict::Ok, "CUDA 12.8"),
            (Some(driver("580.65.06")), cuda(Some("13.0"), Some(0)), true, Verdict::Fail, "sees none"),
            (Some(driver("580.65.06")), cuda(None, Some(0)), true, Verdict::Warn, "has no CUDA"),
        ] {
            let first = judge(driver, &cuda, has_device).remove(0);
            assert_eq!(first.verdict, wanted, "{first}");
            assert!(first.found.contains(part), "{first}");
        }
    }
}
