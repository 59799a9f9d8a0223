//! The number of processes that a command may start side by side on this machine.

use anyhow::Result;
use nestor_recipe::input_error;

use crate::free_memory::free_memory;

/// Processes for each core, beyond which they only take time from each other.
const PER_CORE: usize = 4;
/// Memory of a process with libtorch before it has a model, in bytes.
const EACH: u64 = 200 << 20;

/// The number of processes that were asked for, and the words for them.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub count: usize,
    /// Their kind, such as "ranks".
    pub name: &'a str,
    /// The option or key that says how many.
    pub option: &'a str,
}

impl Asked<'_> {
    /// Refuses more processes than this machine has cores or memory for, unless `oversubscribe` is set. One may always start.
    ///
    /// # Errors
    /// Wrong input, with the cause and the largest number that is accepted.
    pub fn check(&self, oversubscribe: bool) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if oversubscribe { Ok(()) } else { self.fits(cores, free_memory()) }
    }

    fn fits(&self, cores: usize, free: Option<u64>) -> Result<()> {
        let Self { count, name, option } = *self;
        let room = free.map_or(usize::MAX, |free| (free / EACH) as usize).max(1);
        let (most, cause) = match cores * PER_CORE {
            by_cores if by_cores <= room => (by_cores, format!("{cores} cores, and {PER_CORE} a core are the most")),
            _ => {
                let free = free.unwrap_or(0) as f64 / 1e9;
                (room, format!("{free:.1} GB of free memory, and each takes {:.1} GB or more", EACH as f64 / 1e9))
            }
        };
        if count > most {
            return Err(input_error!(
                "{count} {name} are too many for this machine, which has {cause}: set {option} to {most} or less, or add \
                 --oversubscribe to start them all the same"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_limited_by_cores_and_memory() {
        let asked = |count| Asked { count, name: "ranks", option: "--nproc" };
        let said = |count, cores, free| asked(count).fits(cores, free).map_err(|error| error.to_string());
        assert_eq!(said(8, 2, None), Ok(()));
        assert_eq!(said(1, 1, Some(0)), Ok(()));
        let message = said(9, 2, Some(100 << 30)).unwrap_err();
        assert!(
            message.contains("9 ranks") && message.contains("2 cores") && message.contains("--nproc to 8"),
            "{message}"
        );
        let message = said(9, 64, Some(1 << 30)).unwrap_err();
        assert!(message.contains("1.1 GB of free memory") && message.contains("to 5 or less"), "{message}");
        assert!(message.contains("--oversubscribe"));
        assert!(asked(usize::MAX).check(true).is_ok());
    }
}
