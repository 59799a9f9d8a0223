//! Reads this process's rank from the variables of torchrun (`nestor launch` sets the same) or of a step of srun.

use std::str::FromStr;

use anyhow::Result;
use nestor_args::launcher::LAUNCHER;
use nestor_torch::StoreAddress;

use super::secret::{SECRET, Secret};
use crate::input_error;

/// A number of ranks beyond any cluster.
const MOST_RANKS: usize = 1 << 16;

/// Returns the value of a variable that is set.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The rank of a process, and the address of the store where all ranks meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// This process, from 0.
    pub rank: usize,
    /// Number of ranks W.
    pub world: usize,
    /// This process among those of its machine, from 0: the number of its GPU.
    pub local_rank: usize,
    /// Host of the store.
    pub host: String,
    /// Port of the store.
    pub port: u16,
    /// Prefix of every key in the store.
    pub prefix: String,
    /// The launcher serves the store, not rank 0.
    pub served: bool,
    /// Environment variables set the rank.
    pub launched: bool,
    /// The secret of all ranks.
    pub secret: Secret,
}

impl Rendezvous {
    /// True if this process is the only rank and no launcher started it.
    pub fn is_alone(&self) -> bool {
        self.world == 1 && !self.launched
    }

    /// The rank of this process; a group of one where the variables name none.
    pub fn of_environment() -> Result<Self> {
        Self::of(&|name| std::env::var(name).ok())
    }

    /// The only rank of a process that no launcher started.
    fn solo() -> Self {
        Self {
            rank: 0,
            world: 1,
            local_rank: 0,
            host: "127.0.0.1".into(),
            port: 0,
            prefix: "nestor".into(),
            served: false,
            launched: false,
            secret: Secret::default(),
        }
    }

    /// The address of the store.
    pub fn store(&self) -> StoreAddress {
        StoreAddress { host: self.host.clone(), port: self.port, prefix: self.secret.prefix(&self.prefix) }
    }

    /// The rank of a process with these variables, where an empty one counts as unset. torchrun's take precedence, since srun
    /// may start torchrun.
    fn of(lookup: Lookup) -> Result<Self> {
        let lookup: Lookup = &|name| lookup(name).filter(|value| !value.trim().is_empty());
        let own = if let Some(name) = first_set(lookup, &["RANK", "WORLD_SIZE"]) {
            Self::of_torchrun(lookup, name)?
        } else if number(lookup, "SLURM_STEP_NUM_TASKS", Some(1))? > 1 && lookup("SLURM_STEP_ID").is_some() {
            Self::of_srun(lookup)?
        } else {
            Self::solo()
        };
        check(own.rank, own.world)?;
        Ok(Self { secret: Secret::new(lookup(SECRET)), ..own })
    }

    fn of_torchrun(lookup: Lookup, set: &str) -> Result<Self> {
        let wanted = |name: &str| missing(name, set);
        let rank = required(lookup, "RANK", &wanted)?;
        let world = required(lookup, "WORLD_SIZE", &wanted)?;
        check(rank, world)?;
        let local_rank = number(lookup, "LOCAL_RANK", Some(rank))?;
        // torchrun's agent serves its own store there, the same one for every start of the ranks.
        let served = lookup("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let prefix = match served {
            true => {
                let run = lookup("TORCHELASTIC_RUN_ID").unwrap_or_default();
                let restart: u64 = number(lookup, "TORCHELASTIC_RESTART_COUNT", Some(0))?;
                format!("nestor/{run}/{restart}")
            }
            false => "nestor".into(),
        };
        if world == 1 && !served {
            let host = lookup("MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".into());
            let port = number(lookup, "MASTER_PORT", Some(0))?;
            return Ok(Self { rank, local_rank, host, port, prefix, launched: true, ..Self::solo() });
        }
        let host = lookup("MASTER_ADDR").filter(|host| !host.is_empty()).ok_or_else(|| wanted("MASTER_ADDR"))?;
        let port = port(lookup)?.ok_or_else(|| wanted("MASTER_PORT"))?;
        Ok(Self { rank, world, local_rank, host, port, prefix, served, launched: true, ..Self::solo() })
    }

    fn of_srun(lookup: Lookup) -> Result<Self> {
        let wanted = |name: &str| missing(name, "SLURM_STEP_ID");
        let rank = required(lookup, "SLURM_PROCID", &wanted)?;
        let world = required(lookup, "SLURM_STEP_NUM_TASKS", &wanted)?;
        let local_rank = required(lookup, "SLURM_LOCALID", &wanted)?;
        let job: u64 = required(lookup, "SLURM_JOB_ID", &wanted)?;
        let step: u64 = required(lookup, "SLURM_STEP_ID", &wanted)?;
        let nodes = || lookup("SLURM_STEP_NODELIST").or_else(|| lookup("SLURM_JOB_NODELIST"));
        let host = match lookup("MASTER_ADDR").filter(|host| !host.is_empty()) {
            Some(host) => host,
            None => first_host(&nodes().ok_or_else(|| wanted("SLURM_STEP_NODELIST"))?)?,
        };
        // Below the ports that Linux uses for outgoing connections; concurrent steps of one job get different ports.
        let port = port(lookup)?.unwrap_or(15_000 + (job.wrapping_add(step.wrapping_mul(97)) % 15_000) as u16);
        Ok(Self {
            rank,
            world,
            local_rank,
            host,
            port,
            prefix: format!("nestor/{job}.{step}"),
            served: false,
            launched: true,
            secret: Secret::default(),
        })
    }

    /// The prefix "[rank 3] " for a line that this process prints. Empty for the only rank, and where the launcher adds
    /// the prefix.
    pub fn mark(&self) -> String {
        let unmarked = self.world == 1 || std::env::var_os(LAUNCHER).is_some();
        if unmarked { String::new() } else { format!("[rank {}] ", self.rank) }
    }

    /// True if this process serves the store.
    pub fn serves(&self) -> bool {
        self.rank == 0 && !self.served
    }
}

fn first_set<'a>(lookup: Lookup, names: &[&'a str]) -> Option<&'a str> {
    names.iter().copied().find(|name| lookup(name).is_some())
}

fn missing(name: &str, set: &str) -> anyhow::Error {
    input_error!(
        "the variable {name} is not set although {set} is: start ranks with `nestor launch`, torchrun or srun, or unset \
         {set} for a single one"
    )
}

fn required<T: FromStr>(lookup: Lookup, name: &str, missing: &dyn Fn(&str) -> anyhow::Error) -> Result<T> {
    match lookup(name) {
        Some(_) => number(lookup, name, None),
        None => Err(missing(name)),
    }
}

pub(super) fn number<T: FromStr>(lookup: Lookup, name: &str, default: Option<T>) -> Result<T> {
    let text = lookup(name);
    let value = match &text {
        Some(text) => text.trim().parse().ok(),
        None => default,
    };
    value.ok_or_else(|| {
        input_error!("the variable {name} must be a whole number from 0, not `{}`", text.unwrap_or_default())
    })
}

fn port(lookup: Lookup) -> Result<Option<u16>> {
    match lookup("MASTER_PORT").map(|text| (text.trim().parse(), text)) {
        Some((Ok(0) | Err(_), text)) => {
            Err(input_error!("the variable MASTER_PORT must be a number from 1 to 65535, not `{text}`"))
        }
        Some((Ok(port), _)) => Ok(Some(port)),
        None => Ok(None),
    }
}

/// The first host of a list as Slurm writes it: `gpu007` of `gpu[007-009,012],login1`.
fn first_host(list: &str) -> Result<String> {
    let bad = || input_error!("the variable SLURM_STEP_NODELIST is `{list}`, which names no host: set MASTER_ADDR");
    let (mut host, mut rest) = (String::new(), list);
    while let Some(at) = rest.find(['[', ',']) {
        host += &rest[..at];
        if rest[at..].starts_with(',') {
            rest = "";
            break;
        }
        let (numbers, behind) = rest[at + 1..].split_once(']').ok_or_else(bad)?;
        host += numbers.split([',', '-']).next().unwrap_or_default();
        rest = behind;
    }
    host += rest;
    match host.trim() {
        "" => Err(bad()),
        host => Ok(host.into()),
    }
}

fn check(rank: usize, world: usize) -> Result<()> {
    if world > MOST_RANKS {
        return Err(input_error!("there are {world} ranks, but at most {MOST_RANKS} can meet; check WORLD_SIZE"));
    }
    match rank < world {
        true => Ok(()),
        false => Err(input_error!("this is rank {rank} of {world}, but ranks count from 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::InputError;

    /// The rank of a process with variables written as `NAME=value` words.
    fn of(variables: &str) -> Result<Rendezvous> {
        let set: Vec<(&str, &str)> = variables.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        Rendezvous::of(&|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn torchrun_and_srun_set_the_rank() -> Result<()> {
        let agent = "TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_RUN_ID=r7";
        let torchrun = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=29500";
        // Variables; rank, world, local rank, host, port, prefix, true if rank 0 would serve the store.
        let cases = [
            ("HOME=/", (0, 1, 0, "127.0.0.1", 0, "nestor", true)),
            ("RANK= WORLD_SIZE= LOCAL_RANK= MASTER_ADDR=", (0, 1, 0, "127.0.0.1", 0, "nestor", true)),
            ("RANK=0 WORLD_SIZE=1 LOCAL_RANK= MASTER_PORT=", (0, 1, 0, "127.0.0.1", 0, "nestor", true)),
            (torchrun, (5, 8, 1, "a", 29_500, "nestor", true)),
            (&format!("{torchrun} {agent}"), (5, 8, 1, "a", 29_500, "nestor/r7/2", false)),
            (
                "SLURM_JOB_ID=70001 SLURM_STEP_ID=1 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=1 \
                 SLURM_STEP_NODELIST=gpu[007-009,012]",
                (3, 4, 1, "gpu007", 25_098, "nestor/70001.1", true),
            ),
            (
                "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 \
                 SLURM_JOB_NODELIST=n1,n2 MASTER_ADDR=b MASTER_PORT=99",
                (0, 2, 0, "b", 99, "nestor/7.0", true),
            ),
            // An allocation or a batch script is not a step of srun, and a step of one task has no ranks.
            ("SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0", (0, 1, 0, "127.0.0.1", 0, "nestor", true)),
            ("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1", (0, 1, 0, "127.0.0.1", 0, "nestor", true)),
        ];
        for (variables, (rank, world, local_rank, host, port, prefix, serves)) in cases {
            let (host, prefix) = (host.into(), prefix.into());
            // A process without a launcher is alone.
            let launched = world > 1 || variables.contains("RANK=0");
            let wanted = Rendezvous {
                rank,
                world,
                local_rank,
                host,
                port,
                prefix,
                served: !serves,
                launched,
                secret: Secret::default(),
            };
            assert_eq!(of(variables)?, wanted, "{variables}");
        }
        Ok(())
    }

    #[test]
    fn bad_and_partially_set_variables_are_input_errors() {
        let cases = [
            ("RANK=1", "WORLD_SIZE is not set"),
            ("RANK=1 WORLD_SIZE=", "WORLD_SIZE is not set"),
            ("WORLD_SIZE=2", "RANK is not set"),
            ("RANK=2 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", "rank 2 of 2"),
            ("RANK=x WORLD_SIZE=2", "RANK must be a whole number from 0, not `x`"),
            ("RANK=0 WORLD_SIZE=-2", "WORLD_SIZE must be a whole number from 0, not `-2`"),
            ("RANK=0 WORLD_SIZE=0", "rank 0 of 0"),
            ("RANK=0 WORLD_SIZE=2 MASTER_PORT=1", "MASTER_ADDR is not set"),
            ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", "MASTER_PORT is not set"),
            ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000", "MASTER_PORT must be a number from 1"),
            ("SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0", "SLURM_PROCID is not set"),
            (
                "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 \
                 SLURM_STEP_NODELIST=gpu[1",
                "names no host",
            ),
        ];
        for (variables, part) in cases {
            let error = of(variables).expect_err(variables);
            assert!(error.is::<InputError>() && error.to_string().contains(part), "{variables}: {error}");
        }
    }

    #[test]
    fn the_first_host_of_a_list() {
        let cases = [("n1", "n1"), ("n1,n2", "n1"), ("gpu[3,5-7],x", "gpu3"), ("r[01-02]n[003-009]-ib", "r01n003-ib")];
        for (list, host) in cases {
            assert_eq!(first_host(list).ok().as_deref(), Some(host), "{list}");
        }
    }
}
