//! Defaults of keys of several sections.

pub(super) fn one() -> f64 {
    1.0
}
pub(super) fn is_zero(number: &f64) -> bool {
    *number == 0.0
}
pub(super) fn one_u32() -> u32 {
    1
}
pub(super) fn yes() -> bool {
    true
}
