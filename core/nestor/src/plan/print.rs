//! A plan as text.

use std::fmt::{self, Display, Formatter};

use super::memory::SLICE_BYTES;
use super::{Fit, Gpu, Iteration, Phase, Plan};
use crate::recipe::{Dtype, Sharding};

/// Bytes as gigabytes.
fn gb(bytes: u64) -> String {
    match bytes as f64 / 1e9 {
        0.0 => "-".into(),
        small if small < 0.0095 => format!("{small:.4}"),
        large => format!("{large:.2}"),
    }
}

/// Seconds, with as many digits as they are worth.
fn seconds(s: f64) -> String {
    match s {
        0.0 => "-".into(),
        s if s < 0.1 => format!("{s:.4}"),
        s => format!("{s:.1}"),
    }
}

fn mode(sharding: Sharding) -> &'static str {
    match sharding {
        Sharding::Full => "full",
        Sharding::GradOp => "grad_op",
        Sharding::None => "none",
    }
}

fn ranks(n: u64) -> String {
    if n == 1 { "1 rank".into() } else { format!("{n} ranks") }
}

/// Rows of a table: a name, then cells.
fn table(f: &mut Formatter, width: usize, cell: usize, rows: &[(String, Vec<String>)]) -> fmt::Result {
    for (name, cells) in rows {
        let cells: String = cells.iter().map(|text| format!(" {text:>cell$}")).collect();
        writeln!(f, "{}", format!("  {name:<width$}{cells}").trim_end())?;
    }
    writeln!(f)
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Plan { model, world, workload: w, .. } = self;
        writeln!(
            f,
            "{}: {}, {:.2} G parameters in {} blocks, {}, sharding {}, {} of {}",
            self.recipe,
            model.name,
            model.parameters as f64 / 1e9,
            model.blocks,
            if model.dtype == Dtype::Float32 { "float32" } else { "bfloat16" },
            mode(self.here.sharding),
            ranks(world.ranks),
            self.hardware.gpu
        )?;
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        writeln!(f)?;
        memory(f, &self.here)?;
        self.worlds(f)?;
        writeln!(
            f,
            "One iteration: {} episodes of {:.0} steps, prompts of {:.0} and responses of {:.0} tokens on average \
             (--steps, --prompt, --response), {} optimiser steps.\n",
            w.tasks * w.group_size,
            w.steps,
            w.prompt,
            w.response,
            w.mini_batches()
        )?;
        communication(f, &self.iteration)?;
        self.large(f)?;
        writeln!(
            f,
            "Every rank holds the whole batch and all episodes on its host: {} GB, {} GB on a node of {}; both grow with \
             the episodes, not with the ranks.\n",
            gb(self.host_bytes),
            gb(self.host_bytes * world.per_node.min(world.ranks)),
            world.per_node.min(world.ranks)
        )?;
        writeln!(f, "Assumed:")?;
        for line in &self.assumptions {
            writeln!(f, "  {line}")?;
        }
        write!(
            f,
            "  cache of keys and values full, responses at their limit; units travel in slices of {} MiB of float32; \
             prompts computed without shared prefixes",
            SLICE_BYTES >> 20
        )
    }
}

/// Memory of one rank, by item and moment.
fn memory(f: &mut Formatter, fit: &Fit) -> fmt::Result {
    let mut rows = vec![("GB per rank".to_string(), fit.memory.moments.iter().map(|m| m.to_string()).collect())];
    for item in &fit.memory.items {
        rows.push((item.name.to_string(), item.bytes.iter().map(|&b| gb(b)).collect()));
    }
    rows.push(("total".into(), fit.memory.totals().into_iter().map(gb).collect()));
    table(f, 30, 14, &rows)?;
    writeln!(
        f,
        "The peak is {} GB in {}: {} in {} GB. Blocks computed again in the backward pass: {}.\n",
        gb(fit.peak_bytes),
        fit.peak_phase,
        if fit.fits { "it fits" } else { "it does not fit" },
        gb(fit.capacity),
        fit.memory.recomputed
    )
}

/// Bytes of an item over a moment or two.
fn largest(fit: &Fit, name: &str, moments: std::ops::Range<usize>) -> u64 {
    fit.memory.item(name).map_or(0, |bytes| bytes[moments].iter().copied().max().unwrap_or(0))
}

fn communication(f: &mut Formatter, iteration: &Iteration) -> fmt::Result {
    if !iteration.collectives.is_empty() {
        let header = ["calls", "GB sent"].map(String::from).to_vec();
        let mut rows = vec![("communication per rank and iteration".to_string(), header)];
        for c in &iteration.collectives {
            rows.push((format!("{} of {}", c.operation, c.what), vec![c.calls.to_string(), gb(c.bytes)]));
        }
        table(f, 46, 10, &rows)?;
    }
    let header = ["computing", "communicating", "not hidden", "in all"].map(String::from).to_vec();
    let mut rows = vec![("seconds".to_string(), header)];
    for p in &iteration.phases {
        let cells = [p.compute, p.communication, p.exposed, p.seconds()].map(seconds).to_vec();
        rows.push((p.name.to_string(), cells));
    }
    let sum = |of: fn(&Phase) -> f64| seconds(iteration.phases.iter().map(of).sum());
    let cells = vec![sum(|p| p.compute), sum(|p| p.communication), sum(|p| p.exposed), sum(Phase::seconds)];
    rows.push(("total".into(), cells));
    table(f, 16, 14, &rows)
}

impl Plan {
    /// Worlds of 1, 2, 4 and 8 side by side, and which one fits.
    fn worlds(&self, f: &mut Formatter) -> fmt::Result {
        let moments = [0..1, 1..3];
        let header = |text: &dyn Fn(&Fit, usize) -> String| -> Vec<String> {
            self.worlds.iter().flat_map(|fit| [0, 1].map(|column| text(fit, column))).collect()
        };
        let mut rows = vec![
            (
                format!("GB per rank, {}, on", mode(self.sharding)),
                header(&|fit, column| if column == 0 { ranks(fit.ranks) } else { String::new() }),
            ),
            (String::new(), header(&|_, column| ["rollout", "update"][column].to_string())),
        ];
        // A name may be absent in one world, such as gathered units on one rank.
        let mut names: Vec<&str> = Vec::new();
        for item in self.worlds.iter().rev().flat_map(|fit| &fit.memory.items) {
            if !names.contains(&item.name) {
                names.push(item.name);
            }
        }
        for name in names {
            rows.push((name.to_string(), header(&|fit, column| gb(largest(fit, name, moments[column].clone())))));
        }
        let total = |fit: &Fit, column: usize| fit.memory.totals()[moments[column].clone()].iter().copied().max();
        rows.push(("total, at the worst moment".into(), header(&|fit, column| gb(total(fit, column).unwrap_or(0)))));
        rows.push((
            "fits".into(),
            header(&|fit, column| match (column, fit.fits) {
                (0, true) => "yes".into(),
                (0, false) => "no".into(),
                _ => String::new(),
            }),
        ));
        table(f, 30, 8, &rows)?;
        match self.smallest {
            Some(world) => writeln!(f, "The smallest world that fits {}: {}.\n", self.hardware.gpu, ranks(world)),
            None => {
                let last = &self.worlds[self.worlds.len() - 1];
                let mut items: Vec<_> = last.memory.items.iter().map(|i| (i.bytes.iter().max(), i.name)).collect();
                items.sort_by(|a, b| b.cmp(a));
                let most: Vec<String> = items
                    .iter()
                    .take(3)
                    .map(|(bytes, name)| format!("{name} {}", gb(bytes.copied().unwrap_or(0))))
                    .collect();
                writeln!(
                    f,
                    "No world fits {}. Most GB on {}: {}. Smaller: rollout.slots or cache_tokens, update.micro_batch_tokens, \
                     sharding: full, recompute: all, model.lora.\n",
                    self.hardware.gpu,
                    ranks(last.ranks),
                    most.join(", ")
                )
            }
        }
    }

    /// The same batch in larger worlds, where there is more than a node.
    fn large(&self, f: &mut Formatter) -> fmt::Result {
        if self.scaling.len() < 2 {
            return Ok(());
        }
        let header =
            ["tokens a rank", "hidden from", "hidden", "playing", "rollout s", "update s", "not hidden", "iteration s"];
        let mut rows = vec![("the same batch on".to_string(), header.map(String::from).to_vec())];
        for world in &self.scaling {
            let update = world.phase("update");
            let [whole, exposed] = update.map_or([0.0; 2], |p| [p.seconds(), p.exposed]);
            let cells = vec![
                format!("{:.0}", world.micro_batch_tokens),
                format!("{:.0}", world.hidden_from),
                if world.hidden() { "yes" } else { "no" }.to_string(),
                world.playing.to_string(),
                seconds(world.phase("rollout").map_or(0.0, Phase::seconds)),
                seconds(whole),
                seconds(exposed),
                seconds(world.seconds()),
            ];
            rows.push((ranks(world.ranks), cells));
        }
        table(f, 18, 13, &rows)?;
        let last = &self.scaling[self.scaling.len() - 1];
        let hidden = match self.exposed_from.and_then(|size| self.scaling.iter().find(|world| world.ranks == size)) {
            None => format!("Communication stays hidden behind the update's arithmetic up to {}.", ranks(last.ranks)),
            Some(world) => format!(
                "Communication stops being hidden at {}: a rank computes {:.0} tokens a micro-batch there, and hides it \
                 from {:.0} on ({:.0} if calls took no time but for their bytes).",
                ranks(world.ranks),
                world.micro_batch_tokens,
                world.hidden_from,
                world.hidden_from_without_latency
            ),
        };
        writeln!(
            f,
            "{hidden} The batch is the recipe's in every row, so more ranks get fewer tokens each, at least one sequence; \
             a mini-batch has {:.0} sequences, and {} groups are played. On {} hiding it takes {:.0} tokens a micro-batch \
             and {:.1} million a mini-batch ({:.1} without the calls' own time).\n",
            self.workload.sequences(),
            self.workload.tasks,
            ranks(last.ranks),
            last.hidden_from,
            last.hidden_from * last.ranks as f64 / 1e6,
            last.hidden_from_without_latency * last.ranks as f64 / 1e6
        )
    }
}

impl Display for Gpu {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::H100 => "H100 80 GB",
            Self::H200 => "H200 141 GB",
            Self::Cpu => "this CPU",
        })
    }
}
