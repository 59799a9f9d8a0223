//! Disk, shared memory, limits, cores and memory.

use std::fs;
use std::path::Path;

use nestor_args::free_disk::free_disk;
use nestor_args::free_memory::{memory_files, most_and_left};
use nix::sys::resource::{Resource, getrlimit};

use super::Check;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// Checks this machine as the process sees it.
pub fn checks() -> Vec<Check> {
    let mut all = vec![disk(free_disk(Path::new("runs"))), shared_memory(free_disk(Path::new("/dev/shm")))];
    all.extend(limit(Resource::RLIMIT_NOFILE).map(open_files));
    all.extend(limit(Resource::RLIMIT_NPROC).map(processes));
    all.extend(limit(Resource::RLIMIT_MEMLOCK).map(|bytes| locked(bytes, Path::new("/sys/class/infiniband").exists())));
    let online = fs::read_to_string("/proc/cpuinfo").map_or(0, |text| text.matches("\nprocessor").count() + 1);
    all.push(cores(online, std::thread::available_parallelism().map_or(1, usize::from)));
    let (text, group) = memory_files();
    all.extend(memory(&text, group));
    all
}

/// The soft limit; `u64::MAX` is none.
fn limit(resource: Resource) -> Option<u64> {
    getrlimit(resource).ok().map(|(soft, _)| soft)
}

fn gb(bytes: u64) -> String {
    if bytes < 100_000_000 { format!("{:.0} MB", bytes as f64 / 1e6) } else { format!("{:.1} GB", bytes as f64 / 1e9) }
}

fn disk(free: Option<u64>) -> Check {
    let remedy =
        "free some space, or put runs on another disk by --run-dir; `nestor train --check` knows a recipe's need";
    match free {
        None => Check::warn("disk", "unknown", "the system does not report the free space of ./runs"),
        Some(bytes) if bytes < GIB => Check::fail("disk", format!("{} free for ./runs", gb(bytes)), remedy),
        Some(bytes) if bytes < 10 * GIB => Check::warn("disk", format!("{} free for ./runs", gb(bytes)), remedy),
        Some(bytes) => Check::ok("disk", format!("{} free for ./runs", gb(bytes))),
    }
}

/// NCCL shares memory between the GPUs of a node.
fn shared_memory(free: Option<u64>) -> Check {
    let remedy =
        "several GPUs need it for NCCL: docker run --shm-size=1g (or --ipc=host), or mount -o remount,size=1g /dev/shm";
    match free {
        None => Check::warn("/dev/shm", "not there", remedy),
        Some(bytes) if bytes < 512 * MIB => Check::warn("/dev/shm", format!("{} free", gb(bytes)), remedy),
        Some(bytes) => Check::ok("/dev/shm", format!("{} free", gb(bytes))),
    }
}

fn shown(limit: u64) -> String {
    if limit == u64::MAX { "unlimited".into() } else { limit.to_string() }
}

fn open_files(limit: u64) -> Check {
    match limit {
        ..1024 => {
            Check::warn("open files", shown(limit), "raise it: ulimit -n 4096 (docker run --ulimit nofile=65536)")
        }
        _ => Check::ok("open files", shown(limit)),
    }
}

/// Threads count as processes.
fn processes(limit: u64) -> Check {
    match limit {
        ..1024 => Check::warn("processes", shown(limit), "raise it: ulimit -u 4096 (docker run --pids-limit -1)"),
        _ => Check::ok("processes", shown(limit)),
    }
}

/// InfiniBand locks its buffers.
fn locked(limit: u64, infiniband: bool) -> Check {
    let text = if limit == u64::MAX { "unlimited".into() } else { gb(limit) };
    match limit {
        ..GIB if infiniband => Check::warn(
            "locked",
            format!("{text} may be locked, and there is InfiniBand"),
            "NCCL over InfiniBand needs more: ulimit -l unlimited (docker run --ulimit memlock=-1)",
        ),
        _ => Check::ok("locked", format!("{text} may be locked")),
    }
}

fn cores(online: usize, usable: usize) -> Check {
    match usable {
        _ if usable < online => Check::ok("cores", format!("{usable} of {online}, by affinity or cgroup")),
        1 => Check::warn("cores", "1", "environments and libtorch share it; two or more are better"),
        _ => Check::ok("cores", usable.to_string()),
    }
}

/// Judges /proc/meminfo, and the limit and use of the cgroup in bytes.
fn memory(meminfo: &str, group: Option<(u64, u64)>) -> Option<Check> {
    let (total, most, left) = most_and_left(meminfo, group)?;
    let of = if most < total { format!("{}, the cgroup's limit", gb(most)) } else { gb(most) };
    let found = format!("{} free of {of}", gb(left));
    Some(match left {
        ..GIB => Check::fail(
            "memory",
            found,
            "end other programs, or raise the container's limit: a process with libtorch takes 0.5 GB",
        ),
        _ if left < 4 * GIB => {
            Check::warn("memory", found, "enough for small networks only; `nestor plan` knows a recipe's need")
        }
        _ => Check::ok("memory", found),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Verdict::{Fail, Ok, Warn};
    use super::*;

    #[test]
    fn small_machines_are_noticed() {
        let meminfo = "MemTotal:       32000000 kB\nMemFree: 1 kB\nMemAvailable:   30000000 kB\n";
        let memory = |group| memory(meminfo, group).expect("a check");
        for (check, verdict, part) in [
            (disk(Some(300_000_000)), Fail, "0.3 GB free"),
            (disk(Some(5_000_000_000)), Warn, "5.0 GB free"),
            (disk(Some(500_000_000_000)), Ok, "500.0 GB free"),
            (shared_memory(Some(64 * MIB)), Warn, "67 MB free"),
            (open_files(256), Warn, "256"),
            (open_files(u64::MAX), Ok, "unlimited"),
            (locked(64 * MIB, true), Warn, "InfiniBand"),
            (locked(64 * MIB, false), Ok, "67 MB"),
            (cores(16, 2), Ok, "2 of 16"),
            (memory(None), Ok, "30.7 GB free of 32.8 GB"),
            (memory(Some((8 * GIB, 6 * GIB))), Warn, "2.1 GB free of 8.6 GB, the cgroup's limit"),
            (memory(Some((2 * GIB, 2 * GIB))), Fail, "0 MB free"),
        ] {
            assert_eq!(check.verdict, verdict, "{check}");
            assert!(check.found.contains(part), "{check}");
            assert_eq!(check.remedy.is_some(), verdict != Ok, "{check}");
        }
    }
}
