//! A hint for recipe keys that are given as arguments, as other programs take them: `update.lr=1e-5`, `--update.lr=1e-5` or
//! `--update.lr 1e-5`.

use std::ffi::OsString;

use nestor_recipe::{Key, keys, masked};

/// Commands that take a recipe, and `--set` for its keys.
const WITH_RECIPE: [&str; 4] = ["train", "eval", "plan", "verify"];

/// The option that was meant by the first recipe key among a program's arguments, such as `--set update.lr=1e-5`.
pub fn meant(args: &[OsString]) -> Option<String> {
    let texts: Vec<&str> = args.iter().skip(1).map(|arg| arg.to_str().unwrap_or_default()).collect();
    let command = texts.iter().position(|arg| WITH_RECIPE.contains(arg))?;
    let launched = command == 0 || texts.first() == Some(&"launch");
    let words = texts.get(command + 1..).filter(|_| launched)?;
    let program = crate::command();
    let options = program.find_subcommand(texts[command])?.get_arguments().filter_map(|arg| arg.get_long());
    let (options, known) = (options.collect::<Vec<_>>(), keys());
    words.iter().enumerate().find_map(|(at, word)| {
        let is_value = at > 0 && words[at - 1].starts_with("--") && !words[at - 1].contains(['=', '.']);
        let (dashes, name) = word.strip_prefix("--").map_or((false, *word), |name| (true, name));
        let next = words.get(at + 1).copied().filter(|next| !next.starts_with("--"));
        let (key, value) = match name.split_once('=') {
            Some(both) if dashes || !is_value => both,
            None if dashes => (name, next.unwrap_or("VALUE")),
            _ => return None,
        };
        (!options.contains(&key) && names_key(key, &known))
            .then(|| format!("--set {}", masked(&format!("{key}={value}"))))
    })
}

/// True for a key of a recipe or of a plugin's config, also for one that is slightly misspelt: `--set` then names the right
/// one.
fn names_key(name: &str, known: &[Key]) -> bool {
    let is_near = |key: &Key| strsim::damerau_levenshtein(&key.path, name) <= 2;
    match name.split_once('.') {
        Some((section, _)) => known.iter().any(|key| key.path == section) || known.iter().any(is_near),
        None => known.iter().any(|key| key.path == name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_key_among_the_arguments_is_recognised() {
        for (line, wanted) in [
            ("train r.yaml update.lr=1e-3", Some("--set update.lr=1e-3")),
            ("train r.yaml --update.lr=1e-3", Some("--set update.lr=1e-3")),
            ("train r.yaml --update.lr 1e-3 --json", Some("--set update.lr=1e-3")),
            ("plan r.yaml seed=3", Some("--set seed=3")),
            ("eval r.yaml env.config.max=9", Some("--set env.config.max=9")),
            ("launch --nproc 2 train r.yaml --updat.lr=1", Some("--set updat.lr=1")),
            ("train r.yaml --set update.lr=1e-3", None),
            ("train --set=update.lr=1e-3 r.yaml", None),
            ("train runs/a.b=1/recipe.yaml --run-dir update.lr=1", None),
            ("train r.yaml --seed 3", Some("--set seed=3")),
            ("train r.yaml --wandb.api_key=hush", Some("--set wandb.api_key=***")),
            ("eval r.yaml --model seed=1", None),
            ("view runs/a update.lr=1", None),
        ] {
            let args: Vec<OsString> = std::iter::once("nestor").chain(line.split(' ')).map(OsString::from).collect();
            assert_eq!(meant(&args).as_deref(), wanted, "{line}");
        }
    }
}
