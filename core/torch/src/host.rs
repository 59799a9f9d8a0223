//! Memory of this machine that a process may take: the system's, within the limits of the process's control groups.

use std::path::{Path, PathBuf};

/// Bytes that are available: the system's `MemAvailable`, or less where a control group has less room. `None` without
/// Linux's `/proc`.
pub fn available_bytes() -> Option<u64> {
    let system = kib(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(group_room(Path::new("/sys/fs/cgroup"), &groups).map_or(system, |room| room.min(system)))
}

/// The part of this many free bytes that a run may take. A tenth, at most 2 GB, stays clear: a machine without any reads its programs
/// from the disk again and again.
pub fn usable(free: u64) -> u64 {
    free - (free / 10).min(2_000_000_000)
}

/// Bytes of this process's memory that no file backs.
pub fn own_bytes() -> Option<u64> {
    kib(&std::fs::read_to_string("/proc/self/status").ok()?, "RssAnon:")
}

/// A line such as `MemAvailable:  24 kB`, in bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The least room of a process's groups of memory and of those above them. `groups` is the text of `/proc/self/cgroup`.
fn group_room(mount: &Path, groups: &str) -> Option<u64> {
    let chains = groups.lines().filter_map(|line| {
        // `4:memory:/path` in version 1, `0::/path` in version 2.
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (root, names) = match controllers {
            "" => (mount.to_path_buf(), ["memory.max", "memory.current", "inactive_file"]),
            list if list.split(',').any(|one| one == "memory") => {
                (mount.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"])
            }
            _ => return None,
        };
        let own: PathBuf = root.join(path.trim_start_matches('/'));
        own.ancestors().take_while(|dir| dir.starts_with(&root)).filter_map(|dir| room(dir, names)).min()
    });
    chains.min()
}

/// Bytes that a group may still take; the system gives cached files back first. `None` without a limit.
fn room(group: &Path, [limit, usage, cached]: [&str; 3]) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let stat = read("memory.stat").unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix(cached)?.trim().parse().ok()).unwrap_or(0);
    Some(number(limit)?.saturating_sub(number(usage)?.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_group_counts() {
        let mount = std::env::temp_dir().join(format!("nestor-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = mount.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        write("pod/memory.max", "3000\n");
        write("pod/memory.current", "1200\n");
        write("pod/memory.stat", "anon 700\ninactive_file 200\n");
        write("pod/run/memory.max", "max\n");
        write("pod/run/memory.current", "1000\n");
        assert_eq!(group_room(&mount, "0::/pod/run\n"), Some(2000));
        assert_eq!(group_room(&mount, "0::/elsewhere\n"), None);
        // Version 1; a container may not see its own group's folder, only that of its root.
        write("memory/memory.limit_in_bytes", "5000\n");
        write("memory/memory.usage_in_bytes", "4500\n");
        write("memory/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
        assert_eq!(group_room(&mount, "5:cpu:/a\n4:memory,hugetlb:/docker/7\n0::/\n"), Some(1000));
        std::fs::remove_dir_all(&mount).expect("removed");
    }

    #[test]
    fn a_tenth_of_the_memory_stays_clear_up_to_2_gb() {
        let cases = [(0, 0), (5_000_000_000, 4_500_000_000), (24_000_000_000, 22_000_000_000)];
        assert_eq!(cases.map(|(free, _)| usable(free)), cases.map(|(_, usable)| usable));
    }

    #[test]
    fn this_machine_has_memory() {
        let (available, own) = (available_bytes().expect("a number"), own_bytes().expect("a number"));
        assert!(available > 0 && own > 0, "{available} {own}");
    }
}
