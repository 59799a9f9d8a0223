//! Memory that processes may still take on this machine.

use std::fs;

/// The text of /proc/meminfo, and the limit and use of the cgroup in bytes.
pub fn memory_files() -> (String, Option<(u64, u64)>) {
    let number = |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let group = number("/sys/fs/cgroup/memory.max").or_else(|| number("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
    // The system takes back what it keeps of files first.
    let stat = fs::read_to_string("/sys/fs/cgroup/memory.stat").unwrap_or_default();
    let kept = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse().ok()).unwrap_or(0);
    let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0).saturating_sub(kept);
    (fs::read_to_string("/proc/meminfo").unwrap_or_default(), group.map(|limit| (limit, used)))
}

/// Bytes of memory that processes may still take here.
pub fn free_memory() -> Option<u64> {
    let (text, group) = memory_files();
    most_and_left(&text, group).map(|(_, _, left)| left)
}

/// Bytes of memory: all, the most that may be taken, and what is left of it.
pub fn most_and_left(meminfo: &str, group: Option<(u64, u64)>) -> Option<(u64, u64, u64)> {
    let value = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib * 1024)
    };
    let (total, available) = (value("MemTotal:")?, value("MemAvailable:")?);
    let (most, left) = match group {
        Some((limit, used)) if limit < total => (limit, available.min(limit.saturating_sub(used))),
        _ => (total, available),
    };
    Some((total, most, left))
}
