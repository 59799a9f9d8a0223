//! Numbers of a plan as text, in units that suit them.

use crate::recipe::{Dtype, Sharding};

/// The unit of a table's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Mb,
    Gb,
}

impl Unit {
    /// The unit for a table whose largest number is this.
    pub fn of(largest: u64) -> Self {
        if largest < 2_000_000_000 { Self::Mb } else { Self::Gb }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Mb => "MB",
            Self::Gb => "GB",
        }
    }

    /// A cell of the table.
    pub fn cell(self, bytes: u64) -> String {
        match (self, bytes as f64) {
            (_, 0.0) => "-".into(),
            (Self::Mb, bytes) if bytes < 0.05e6 => "<0.1".into(),
            (Self::Mb, bytes) => format!("{:.1}", bytes / 1e6),
            (Self::Gb, bytes) if bytes < 0.005e9 => "<0.01".into(),
            (Self::Gb, bytes) => format!("{:.2}", bytes / 1e9),
        }
    }
}

/// Bytes with their unit.
pub fn bytes(bytes: u64) -> String {
    match bytes as f64 {
        b if b < 1e6 => format!("{:.0} kB", b / 1e3),
        b if b < 1e9 => format!("{:.0} MB", b / 1e6),
        b if b < 100e9 => format!("{:.2} GB", b / 1e9),
        b => format!("{:.0} GB", b / 1e9),
    }
}

/// A number of parameters.
pub fn parameters(n: u64) -> String {
    match n as f64 {
        n if n < 1e6 => format!("{:.0} thousand parameters", n / 1e3),
        n if n < 1e9 => format!("{:.1} million parameters", n / 1e6),
        n => format!("{:.2} billion parameters", n / 1e9),
    }
}

/// Seconds with their significant digits, for a table.
pub fn seconds(s: f64) -> String {
    match s {
        0.0 => "-".into(),
        s if s < 0.1 => format!("{s:.4}"),
        s => format!("{s:.1}"),
    }
}

/// A time in the unit that suits it.
pub fn duration(s: f64) -> String {
    match s {
        s if s < 0.1 => format!("{:.0} ms", s * 1e3),
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 600.0 => format!("{s:.0} s"),
        s if s < 6000.0 => format!("{:.0} minutes", s / 60.0),
        s if s < 72.0 * 3600.0 => format!("{:.1} hours", s / 3600.0),
        s => format!("{:.1} days", s / 86400.0),
    }
}

/// A number of things.
pub fn count(n: u64, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

pub fn ranks(n: u64) -> String {
    count(n, "rank")
}

pub fn mode(sharding: Sharding) -> &'static str {
    match sharding {
        Sharding::Full => "full",
        Sharding::GradOp => "grad_op",
        Sharding::None => "none",
    }
}

pub fn dtype(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Float32 => "float32",
        Dtype::Bfloat16 => "bfloat16",
        Dtype::Float16 => "float16",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_suit_their_numbers() {
        assert_eq!(parameters(117_376), "117 thousand parameters");
        assert_eq!(parameters(1_543_714_304), "1.54 billion parameters");
        assert_eq!([bytes(740_000_000), bytes(1_940_000_000), bytes(141_000_000_000)], ["740 MB", "1.94 GB", "141 GB"]);
        assert_eq!(
            [duration(0.0123), duration(5.0), duration(700.0), duration(1e5)],
            ["12 ms", "5.0 s", "12 minutes", "27.8 hours"]
        );
        assert_eq!([Unit::Mb.cell(0), Unit::Mb.cell(10_000), Unit::Gb.cell(1_234_000_000)], ["-", "<0.1", "1.23"]);
    }
}
