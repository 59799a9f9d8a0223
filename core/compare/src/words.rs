//! Verdicts in words, and numbers as text.

use crate::comparison::Difference;
use crate::stats::CALL;

/// A share in points of a percent.
pub fn points(share: f64) -> String {
    let text = format!("{:.1}", 100.0 * share);
    if text == "-0.0" { "0.0".into() } else { text }
}

/// A difference with its sign.
pub fn signed(share: f64) -> String {
    let text = points(share);
    if text.starts_with('-') || text == "0.0" { text } else { format!("+{text}") }
}

/// Says whether a difference exceeds replicate noise; `comparisons` are those that its p-value is corrected for.
pub fn verdict(difference: &Difference, comparisons: usize) -> String {
    let Difference { group, against, window, .. } = difference;
    let Some([low, high]) = difference.interval else {
        return format!(
            "{group} and {against} differ by {} points: replicate noise is unknown with one seed",
            points(window.abs())
        );
    };
    let [own, other] = difference.seeds;
    let seeds = match (difference.paired, own == other) {
        (true, _) | (false, true) => format!("{own} seeds"),
        (false, false) => format!("{own} and {other} seeds"),
    };
    let interval = |low: f64, high: f64| format!("(95 % interval {} to {}, {seeds})", points(low), points(high));
    let (leader, follower, low, high) =
        if *window >= 0.0 { (group, against, low, high) } else { (against, group, -high, -low) };
    let size = points(window.abs());
    let first = if size == "0.0" {
        format!("{group} and {against} differ by 0.0 points")
    } else {
        format!("{leader} leads {follower} by {size} points")
    };
    if difference.exceeds_noise {
        return format!("{first} {}: more than replicate noise", interval(low, high));
    }
    let reason = match (low > 0.0, difference.p_holm) {
        (true, Some(p)) if p >= CALL => {
            let corrected = if comparisons > 1 {
                format!(" after Holm's correction for {comparisons} comparisons")
            } else {
                String::new()
            };
            format!(" (p is {p:.3}{corrected}, not below {CALL})")
        }
        (true, _) => " (the bootstrap over seeds and tasks does not exclude 0)".into(),
        (false, _) => String::new(),
    };
    let would_show = match difference.detectable {
        None => String::new(),
        Some(detectable) if detectable >= 1.0 => format!("; {seeds} are too few to show any difference"),
        Some(detectable) => {
            format!("; with {seeds} a difference of about {:.0} points would show", (100.0 * detectable).ceil())
        }
    };
    format!("{first} {}: within replicate noise{reason}{would_show}", interval(low, high))
}
