//! A plan as text.

use std::fmt::{self, Display, Formatter};

use nestor_args::Gpu;

use super::format::{Unit, bytes, count, dtype, duration, mode, parameters, ranks, seconds};
use super::memory::SLICE_BYTES;
use super::{Fit, Iteration, Plan, PlannedPhase};

/// Writes the rows of a table: a name, then cells.
fn table(f: &mut Formatter, width: usize, cell: usize, rows: &[(String, Vec<String>)]) -> fmt::Result {
    for (name, cells) in rows {
        let cells: String = cells.iter().map(|text| format!(" {text:>cell$}")).collect();
        writeln!(f, "{}", format!("  {name:<width$}{cells}").trim_end())?;
    }
    writeln!(f)
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Plan { cluster, workload: w, .. } = self;
        self.verdict(f)?;
        memory(f, &self.here)?;
        if self.hardware.gpu != Gpu::Cpu || cluster.ranks > 1 {
            self.clusters(f)?;
        }
        writeln!(
            f,
            "One iteration: {} episodes of {:.0} steps, prompts of {:.0} and responses of {:.0} tokens on average \
             (--steps, --prompt, --response), {} optimizer steps.{}\n",
            w.tasks * w.group_size,
            w.steps,
            w.prompt,
            w.response,
            w.mini_batches(),
            self.prefix_tree()
        )?;
        communication(f, &self.iteration)?;
        self.large(f)?;
        let sharing = cluster.per_node.min(cluster.ranks);
        if sharing > 1 {
            writeln!(
                f,
                "Every rank holds the whole batch and all episodes on its host: {}, or {} on a node of {sharing}. Both \
                 grow with the episodes, not with the ranks.\n",
                bytes(self.host_bytes),
                bytes(self.host_bytes * sharing)
            )?;
        }
        if self.checkpoint_copy > 0 && self.hardware.gpu != Gpu::Cpu {
            let (copy, node) = (bytes(self.checkpoint_copy), bytes(self.checkpoint_copy * sharing.max(1)));
            writeln!(
                f,
                "checkpoint.background copies {copy} to the host of every rank for a save: {node} on a node.\n"
            )?;
        }
        let offloaded = &self.offloaded;
        if offloaded.host > 0 && self.hardware.gpu != Gpu::Cpu {
            writeln!(
                f,
                "update.offload keeps {} in pinned memory of the host of every rank: {} on a node. A step copies {} to the device and back, in {}.\n",
                bytes(offloaded.host),
                bytes(offloaded.host * sharing.max(1)),
                bytes(offloaded.master_weights + offloaded.state),
                duration(offloaded.seconds(&self.hardware))
            )?;
        }
        writeln!(f, "Assumed:")?;
        for line in &self.assumptions {
            writeln!(f, "  {line}")?;
        }
        write!(
            f,
            "  a full cache of keys and values, responses at their limit, units in slices of {} MiB of float32, a \
             rollout whose prompts share no prefixes",
            SLICE_BYTES >> 20
        )
    }
}

/// Writes the memory of one rank by item and moment.
fn memory(f: &mut Formatter, fit: &Fit) -> fmt::Result {
    let unit = Unit::of(fit.peak_bytes);
    let header = fit.memory.moments.iter().map(|m| m.to_string()).collect();
    let mut rows = vec![(format!("{} per rank", unit.name()), header)];
    for item in &fit.memory.items {
        rows.push((item.name.to_string(), item.bytes.iter().map(|&b| unit.cell(b)).collect()));
    }
    rows.push(("total".into(), fit.memory.totals().into_iter().map(|b| unit.cell(b)).collect()));
    table(f, 30, 14, &rows)
}

/// Largest bytes of an item over a range of moments.
fn largest(fit: &Fit, name: &str, moments: std::ops::Range<usize>) -> u64 {
    fit.memory.item(name).map_or(0, |bytes| bytes[moments].iter().copied().max().unwrap_or(0))
}

fn communication(f: &mut Formatter, iteration: &Iteration) -> fmt::Result {
    if !iteration.collectives.is_empty() {
        let unit = Unit::of(iteration.collectives.iter().map(|c| c.bytes).max().unwrap_or(0));
        let header = vec!["calls".to_string(), format!("{} sent", unit.name())];
        let mut rows = vec![("communication per rank and iteration".to_string(), header)];
        for c in &iteration.collectives {
            rows.push((format!("{} of {}", c.operation, c.what), vec![c.calls.to_string(), unit.cell(c.bytes)]));
        }
        table(f, 46, 10, &rows)?;
    }
    let header = ["computing", "communicating", "not hidden", "in all"].map(String::from).to_vec();
    let mut rows = vec![("seconds".to_string(), header)];
    for p in &iteration.phases {
        let cells = [p.compute, p.communication, p.exposed, p.seconds()].map(seconds).to_vec();
        rows.push((p.name.to_string(), cells));
    }
    let sum = |of: fn(&PlannedPhase) -> f64| seconds(iteration.phases.iter().map(of).sum());
    let cells = vec![sum(|p| p.compute), sum(|p| p.communication), sum(|p| p.exposed), sum(PlannedPhase::seconds)];
    rows.push(("total".into(), cells));
    table(f, 16, 14, &rows)
}

impl Plan {
    /// A sentence of what the update gains where sequences begin alike.
    fn prefix_tree(&self) -> String {
        match self.workload.common {
            0.0 => String::new(),
            common => format!(
                " Sequences of a group begin with {common:.0} tokens in common, as rehearsed, which a micro-batch computes \
                 once: perf/tree_factor is about {:.2}, or more where states recur.",
                self.iteration.tree_factor
            ),
        }
    }

    /// Writes the answer first: the run, if it fits, and the time it takes.
    fn verdict(&self, f: &mut Formatter) -> fmt::Result {
        let Plan { model, cluster, here, whole, .. } = self;
        writeln!(
            f,
            "{}: {} ({}{}) in {} blocks, {}, {} of {}{}",
            self.recipe,
            parameters(model.parameters),
            model.name,
            if model.tower > 0 { format!(", {} in its vision tower", parameters(model.tower)) } else { String::new() },
            model.blocks,
            dtype(model.dtype),
            ranks(cluster.ranks),
            self.device,
            if cluster.ranks > 1 { format!(", sharding {}", mode(here.sharding)) } else { String::new() }
        )?;
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        writeln!(f)?;
        if let Some(fit) = &self.fit {
            fit.write(f)?;
        }
        writeln!(
            f,
            "{}: {} of {}{} ({:.0} %), the most in {}; blocks recomputed in the backward pass: {}.",
            if here.fits { "It fits" } else { "It does not fit" },
            bytes(here.peak_bytes),
            bytes(here.capacity),
            if cluster.ranks > 1 { " a rank" } else { "" },
            100.0 * here.peak_bytes as f64 / here.capacity.max(1) as f64,
            here.peak_phase,
            here.memory.recomputed
        )?;
        let mut parts = vec![count(whole.iterations, "iteration")];
        match whole.evaluation {
            Some(seconds) => parts.push(format!("{} ({})", count(whole.evaluations, "evaluation"), duration(seconds))),
            None => parts.push("without its evaluations, whose tasks are not on this machine".into()),
        }
        if whole.warm_start > 0.0 {
            parts.push(format!("the warm start ({})", duration(whole.warm_start)));
        }
        writeln!(
            f,
            "An iteration takes about {}, the whole run {} or {:.*} {}-hours: {}.\n",
            duration(self.iteration.seconds()),
            duration(whole.seconds),
            if whole.device_hours < 10.0 { 2 } else { 0 },
            whole.device_hours,
            if self.hardware.gpu == Gpu::Cpu { "CPU" } else { "GPU" },
            parts.join(", ")
        )
    }

    /// Writes clusters of 1, 2, 4 and 8 ranks side by side, and the smallest that fits.
    fn clusters(&self, f: &mut Formatter) -> fmt::Result {
        let moments = [0..1, 1..3];
        let unit = Unit::of(self.clusters.iter().map(|fit| fit.peak_bytes).max().unwrap_or(0));
        let header = |text: &dyn Fn(&Fit, usize) -> String| -> Vec<String> {
            self.clusters.iter().flat_map(|fit| [0, 1].map(|column| text(fit, column))).collect()
        };
        let mut rows = vec![
            (
                format!("{} per rank, {}, on", unit.name(), mode(self.sharding)),
                header(&|fit, column| if column == 0 { ranks(fit.ranks) } else { String::new() }),
            ),
            (String::new(), header(&|_, column| ["rollout", "update"][column].to_string())),
        ];
        // A cluster may lack an item, such as gathered units on one rank.
        let mut names: Vec<&str> = Vec::new();
        for item in self.clusters.iter().rev().flat_map(|fit| &fit.memory.items) {
            if !names.contains(&item.name) {
                names.push(item.name);
            }
        }
        for name in names {
            rows.push((
                name.to_string(),
                header(&|fit, column| unit.cell(largest(fit, name, moments[column].clone()))),
            ));
        }
        let total = |fit: &Fit, column: usize| fit.memory.totals()[moments[column].clone()].iter().copied().max();
        rows.push((
            "total at the worst moment".into(),
            header(&|fit, column| unit.cell(total(fit, column).unwrap_or(0))),
        ));
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
            Some(fewest) => {
                writeln!(f, "The smallest cluster of {} that fits: {}.\n", self.hardware.gpu, ranks(fewest))
            }
            None => {
                let last = &self.clusters[self.clusters.len() - 1];
                let mut items: Vec<_> = last.memory.items.iter().map(|i| (i.bytes.iter().max(), i.name)).collect();
                items.sort_by(|a, b| b.cmp(a));
                let most: Vec<String> = items
                    .iter()
                    .take(3)
                    .map(|(most, name)| format!("{name} {}", bytes(most.copied().unwrap_or(0))))
                    .collect();
                writeln!(
                    f,
                    "No cluster of {} fits. The largest items on {}: {}. To save memory: --fit, or model.lora.\n",
                    self.hardware.gpu,
                    ranks(last.ranks),
                    most.join(", ")
                )
            }
        }
    }

    /// Writes the times of the same batch on more and more ranks.
    fn large(&self, f: &mut Formatter) -> fmt::Result {
        if self.scaling.len() < 2 {
            return Ok(());
        }
        let header =
            ["tokens a rank", "hidden from", "hidden", "playing", "rollout s", "update s", "not hidden", "iteration s"];
        let mut rows = vec![("the same batch on".to_string(), header.map(String::from).to_vec())];
        for point in &self.scaling {
            let update = point.phase("update");
            let [whole, exposed] = update.map_or([0.0; 2], |p| [p.seconds(), p.exposed]);
            let cells = vec![
                format!("{:.0}", point.micro_batch_tokens),
                format!("{:.0}", point.hidden_from),
                if point.hidden() { "yes" } else { "no" }.to_string(),
                point.playing.to_string(),
                seconds(point.phase("rollout").map_or(0.0, PlannedPhase::seconds)),
                seconds(whole),
                seconds(exposed),
                seconds(point.seconds()),
            ];
            rows.push((ranks(point.ranks), cells));
        }
        table(f, 18, 13, &rows)?;
        let last = &self.scaling[self.scaling.len() - 1];
        let hidden = match self.exposed_from.and_then(|size| self.scaling.iter().find(|point| point.ranks == size)) {
            None => format!("The update's computation hides its communication up to {}.", ranks(last.ranks)),
            Some(point) => format!(
                "Communication stops being hidden at {}: a rank computes {:.0} tokens a micro-batch there, and hiding takes \
                 {:.0} ({:.0} without latency).",
                ranks(point.ranks),
                point.micro_batch_tokens,
                point.hidden_from,
                point.hidden_from_without_latency
            ),
        };
        writeln!(
            f,
            "{hidden} Every row has the recipe's batch, so more ranks get fewer tokens each, at least one sequence. A \
             mini-batch has {:.0} sequences, and an iteration plays {} groups. On {} hiding takes {:.0} tokens a \
             micro-batch and {:.1} million a mini-batch ({:.1} without latency).\n",
            self.workload.sequences(),
            self.workload.tasks,
            ranks(last.ranks),
            last.hidden_from,
            last.hidden_from * last.ranks as f64 / 1e6,
            last.hidden_from_without_latency * last.ranks as f64 / 1e6
        )
    }
}
