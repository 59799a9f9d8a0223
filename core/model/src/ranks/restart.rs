//! Restarts of a command by the program that started it: torchrun's agent, or Slurm after a requeue.

use anyhow::Result;

use super::environment::{Lookup, number};

/// The variables that count restarts.
const COUNTS: [&str; 2] = ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"];
/// The most restarts of torchrun, which it may make without a change of the command.
const MOST: &str = "TORCHELASTIC_MAX_RESTARTS";

/// The number of times that this command was started before.
pub fn count() -> Result<u64> {
    count_of(&set)
}

/// A variable by which this command is a restart or may be restarted, as words.
pub fn sign() -> Result<Option<String>> {
    sign_of(&set)
}

/// A variable's value; an empty one counts as unset.
fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

fn count_of(lookup: Lookup) -> Result<u64> {
    Ok(COUNTS.iter().map(|name| number(lookup, name, Some(0))).collect::<Result<Vec<u64>>>()?.into_iter().sum())
}

fn sign_of(lookup: Lookup) -> Result<Option<String>> {
    for name in COUNTS.into_iter().chain([MOST]) {
        let value: u64 = number(lookup, name, Some(0))?;
        if value > 0 {
            return Ok(Some(format!("{name} is {value}")));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torchrun_and_slurm_count_restarts() -> Result<()> {
        let of = |variables: &[(&str, &str)]| {
            let set: Vec<(String, String)> =
                variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            move |name: &str| set.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        for (variables, restarts, named) in [
            (&[][..], 0, None),
            (&[("TORCHELASTIC_RESTART_COUNT", "0"), ("TORCHELASTIC_MAX_RESTARTS", "0")], 0, None),
            (&[("TORCHELASTIC_MAX_RESTARTS", "3")], 0, Some("TORCHELASTIC_MAX_RESTARTS is 3")),
            (&[("TORCHELASTIC_RESTART_COUNT", "2")], 2, Some("TORCHELASTIC_RESTART_COUNT is 2")),
            (&[("SLURM_RESTART_COUNT", "1")], 1, Some("SLURM_RESTART_COUNT is 1")),
        ] {
            assert_eq!((count_of(&of(variables))?, sign_of(&of(variables))?.as_deref()), (restarts, named));
        }
        assert!(count_of(&of(&[("SLURM_RESTART_COUNT", "x")])).is_err());
        Ok(())
    }
}
