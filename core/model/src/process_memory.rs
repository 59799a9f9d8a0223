//! Memory of this process.

/// Resident memory of this process in bytes; none where the system does not report it.
pub fn rss_bytes() -> Option<f64> {
    status_bytes("VmRSS:")
}

/// Peak resident memory of this process in bytes; none where the system does not report it.
pub fn peak_bytes() -> Option<f64> {
    status_bytes("VmHWM:")
}

fn status_bytes(field: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kib| kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::rss_bytes;

    #[test]
    fn memory_is_plausible() {
        assert!(rss_bytes().is_none_or(|bytes| bytes > 1e6));
    }
}
