//! Times for people.

/// Seconds as "9 s", "3 min 20 s" or "2 h 05 min".
pub fn duration(seconds: f64) -> String {
    match parts(seconds) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s:02} s"),
        (h, m, _) => format!("{h} h {m:02} min"),
    }
}

/// Seconds as "9s", "3m20s", "2h05m", "12d03h" or "120d".
pub fn short_duration(seconds: f64) -> String {
    match parts(seconds) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, _) if h < 100 => format!("{h}h{m:02}m"),
        (h, ..) if h < 2400 => format!("{}d{:02}h", h / 24, h % 24),
        (h, ..) => format!("{}d", (h / 24).min(99_999)),
    }
}

/// Hours, minutes and seconds.
fn parts(seconds: f64) -> (u64, u64, u64) {
    let seconds = seconds.round() as u64;
    (seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_read_well() {
        assert_eq!([9.2, 200.0, 7500.0].map(duration), ["9 s", "3 min 20 s", "2 h 05 min"]);
    }
}
