//! Names that TRL, verl and others give to the settings of a run and to their values, with Nestor's. foreign.md has the settings:
//! it is the tables of docs/coming_from.md, and the remedies for unknown keys. A name that a recipe has too, such as `lr`,
//! needs no line there.

/// The tables of docs/coming_from.md: names in TRL, in verl with the sections around them, in other programs or as people guess
/// them, and the rest of a sentence that starts with one of the names.
pub const FOREIGN: &str = include_str!("foreign.md");

/// The foreign names, each with the rest of the sentence.
pub(super) fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows = FOREIGN.lines().filter_map(|line| line.strip_prefix('|')?.trim_end_matches('|').rsplit_once('|'));
    rows.flat_map(|(names, meaning)| names.split('`').skip(1).step_by(2).map(|name| (name, meaning.trim())))
}

/// The rest of a sentence that starts with a foreign name: by the whole name, or by the last part of one with sections, unless
/// that part is the name of a recipe's key too.
pub(super) fn meaning(name: &str, is_key: impl Fn(&str) -> bool) -> Option<&'static str> {
    let (whole, last) = (squeezed(name), name.rsplit('.').next().unwrap_or(name));
    let same = |known: &str| squeezed(known) == squeezed(last);
    let is_last = |known: &str| match known.rsplit_once('.') {
        Some((_, known)) => same(known) && !is_key(last),
        None => same(known),
    };
    let found = all().find(|(known, _)| squeezed(known) == whole).or_else(|| all().find(|(known, _)| is_last(known)));
    found.map(|(_, meaning)| meaning)
}

/// A name without the signs and capitals in which spellings differ.
pub(super) fn squeezed(name: &str) -> String {
    name.chars().filter(|c| !['_', '-', ' '].contains(c)).flat_map(char::to_lowercase).collect()
}

/// Names that other programs give to values of a recipe.
pub(super) const VALUES: [(&str, &str); 18] = [
    ("gpu", "cuda"),
    ("bf16", "bfloat16"),
    ("fp16", "float16"),
    ("half", "float16"),
    ("fp32", "float32"),
    ("fsdp", "full"),
    ("zero3", "full"),
    ("zero2", "grad_op"),
    ("grpo", "clip"),
    ("ppo", "clip"),
    ("dapo", "clip"),
    ("vanilla", "clip"),
    ("low_var_kl", "k3"),
    ("kl", "k1"),
    ("mse", "k2"),
    ("dr_grpo", "seq-mean-token-sum-norm"),
    ("cosine_with_min_lr", "cosine"),
    ("adamw_torch", "adamw"),
];
