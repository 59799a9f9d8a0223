//! The comparison of groups: each group's success over seeds, and each group's difference from one of them.

use crate::CompareError;
use crate::bootstrap;
use crate::comparable::obstacles;
use crate::comparison::{Comparison, Difference, GroupResult, Used, Window};
use crate::group::{Group, groups, other_differences};
use crate::measures::{Best, Reached, area, best, evaluations, reaches, success, task_shares};
use crate::record::Run;
use crate::stats::{CALL, Estimate, Spread, holm, mcnemar, mean};
use crate::words;

/// Choices of a comparison.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of last evaluations whose mean is compared; by default half of them.
    pub window: Option<usize>,
    /// Success whose first reaching is counted, from 0 to 1.
    pub threshold: f64,
    /// The group that all others are compared with; by default the first.
    pub against: Option<String>,
    /// Group runs by the folder that holds them instead of by recipe.
    pub by_folder: bool,
    /// Compare runs that are not comparable.
    pub anyway: bool,
    /// Draws of the bootstrap.
    pub draws: usize,
    /// Random halvings of the panel for the bias of the best evaluation.
    pub halvings: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window: None,
            threshold: 0.5,
            against: None,
            by_folder: false,
            anyway: false,
            draws: 10_000,
            halvings: 100,
        }
    }
}

/// Compares groups of runs. Refuses runs that are not comparable, unless the options ask for it.
pub fn compare(runs: &[Run], options: &Options) -> Result<Comparison, CompareError> {
    let groups = groups(runs, options.by_folder)?;
    let first = groups.first().and_then(|group| group.runs.first()).ok_or(CompareError::NoRuns)?;
    let obstacles = obstacles(&groups);
    if !obstacles.is_empty() && !options.anyway {
        return Err(CompareError::Incomparable(obstacles));
    }
    let base = match &options.against {
        None => 0,
        Some(name) => groups.iter().position(|group| group.name == *name).ok_or_else(|| CompareError::NoGroup {
            name: name.clone(),
            groups: groups.iter().map(|group| group.name.clone()).collect(),
        })?,
    };
    let evaluations = evaluations(first);
    let window = options.window.unwrap_or(evaluations.len().div_ceil(2)).clamp(1, evaluations.len());
    let others: Vec<&Group> = groups.iter().filter(|group| group.name != groups[base].name).collect();
    let has_noise = |group: &&&Group| group.runs.len().min(groups[base].runs.len()) > 1;
    let comparisons = others.iter().filter(has_noise).count();
    let mut differences: Vec<Difference> =
        others.iter().map(|group| difference(group, &groups[base], window, options.draws, comparisons)).collect();
    correct(&mut differences);
    let panel = &first.panel;
    Ok(Comparison {
        panel: panel.name.clone(),
        panel_sha256: panel.sha256.clone(),
        tasks: panel.tasks,
        samples: panel.samples,
        window: Window {
            evaluations: window,
            from: evaluations[evaluations.len() - window].0,
            to: evaluations[evaluations.len() - 1].0,
        },
        threshold: options.threshold,
        against: groups[base].name.clone(),
        recipe_differences: other_differences(&groups),
        groups: groups.iter().map(|group| result(group, window, options)).collect(),
        differences,
        obstacles,
    })
}

fn last_success(run: &Run) -> f64 {
    evaluations(run).last().map_or(0.0, |(_, won)| success(&run.panel, won))
}

/// The share of one episode in an evaluation: a rate moves by whole episodes.
fn resolution(run: &Run) -> f64 {
    1.0 / (run.panel.tasks as f64 * f64::from(run.panel.samples))
}

fn result(group: &Group, window: usize, options: &Options) -> GroupResult {
    let episode = resolution(group.runs[0]);
    let over =
        |measure: &dyn Fn(&Run) -> f64| Estimate::of(group.runs.iter().map(|run| measure(run)).collect(), episode);
    let shares: Vec<Vec<f64>> = group.runs.iter().map(|run| task_shares(run, window)).collect();
    let of_type = |places: &Vec<usize>| {
        let rate =
            |shares: &Vec<f64>| places.iter().map(|&place| shares.get(place).copied().unwrap_or(0.0)).sum::<f64>();
        let episode = 1.0 / (places.len() as f64 * f64::from(group.runs[0].panel.samples));
        Estimate::of(shares.iter().map(|shares| rate(shares) / places.len() as f64).collect(), episode)
    };
    let bests: Vec<Best> = group.runs.iter().filter_map(|run| best(run, options.halvings)).collect();
    let mean_of = |part: fn(&Best) -> f64| mean(&bests.iter().map(part).collect::<Vec<_>>());
    GroupResult {
        name: group.name.clone(),
        runs: group.runs.iter().map(|run| run.name.clone()).collect(),
        seeds: group.runs.iter().map(|run| run.seed()).collect(),
        last: over(&last_success),
        window: over(&|run| mean(&task_shares(run, window))),
        area: over(&area),
        threshold: Reached::of(group.runs.iter().map(|run| reaches(run, options.threshold)).collect()),
        best: (!bests.is_empty()).then(|| Best {
            success: mean_of(|best| best.success),
            held_out: mean_of(|best| best.held_out),
            bias: mean_of(|best| best.bias),
        }),
        types: group.runs[0].panel.types.iter().map(|(kind, places)| (kind.clone(), of_type(places))).collect(),
        used: used(group),
    }
}

fn used(group: &Group) -> Used {
    let mean_of = |measure: &dyn Fn(&Run) -> Option<f64>| {
        let values: Option<Vec<f64>> = group.runs.iter().map(|run| measure(run)).collect();
        values.map(|values| mean(&values))
    };
    let last = |name: &'static str| mean_of(&move |run: &Run| run.metrics.values(name).last());
    let sum = |run: &Run, name: &str| run.metrics.values(name).reduce(|a, b| a + b);
    Used {
        iterations: mean_of(&|run| run.metrics.iterations.last().map(|&last| last as f64)),
        episodes: last("episode/total"),
        turns: mean_of(&|run| {
            let lengths: Vec<f64> = run.metrics.values("episode/length").collect();
            (!lengths.is_empty()).then(|| mean(&lengths))
        }),
        tokens: last("tokens/total"),
        hours: mean_of(&|run| Some(sum(run, "time/iteration_s")? / 3600.0)),
        advantage_share: mean_of(&|run| Some(sum(run, "time/advantage_s")? / sum(run, "time/iteration_s")?)),
        peak_rss_bytes: mean_of(&|run| run.metrics.values("memory/peak_rss_bytes").reduce(f64::max)),
    }
}

/// The pairs of runs with one seed, if one group has all seeds of the other and they are two or more.
fn pairs<'a>(group: &Group<'a>, base: &Group<'a>) -> Option<Vec<(&'a Run, &'a Run)>> {
    let twin = |run: &Run| base.runs.iter().copied().find(|other| other.seed() == run.seed());
    let pairs: Vec<_> = group.runs.iter().filter_map(|run| Some((*run, twin(run)?))).collect();
    (pairs.len() > 1 && pairs.len() == group.runs.len().min(base.runs.len())).then_some(pairs)
}

fn difference(group: &Group, base: &Group, window: usize, draws: usize, comparisons: usize) -> Difference {
    let pairs = pairs(group, base);
    let is_paired = pairs.is_some();
    let (own, other): (Vec<&Run>, Vec<&Run>) = match &pairs {
        Some(pairs) => pairs.iter().copied().unzip(),
        None => (group.runs.clone(), base.runs.clone()),
    };
    let compared = |measure: &dyn Fn(&Run) -> f64, resolution: f64| -> (f64, Option<Spread>) {
        let a: Vec<f64> = own.iter().map(|run| measure(run)).collect();
        let b: Vec<f64> = other.iter().map(|run| measure(run)).collect();
        let spread = match is_paired {
            true => Spread::paired(&a.iter().zip(&b).map(|(a, b)| a - b).collect::<Vec<_>>(), resolution),
            false => Spread::welch(&a, &b, resolution),
        };
        (mean(&a) - mean(&b), spread)
    };
    let resolution = resolution(own[0]);
    let (at, spread) = compared(&|run| mean(&task_shares(run, window)), resolution);
    let (last, last_spread) = compared(&last_success, resolution);
    let shares = |runs: &[&Run]| runs.iter().map(|run| task_shares(run, window)).collect::<Vec<_>>();
    let has_one_panel = own.iter().chain(&other).all(|run| run.panel.tasks == own[0].panel.tasks);
    let discordant = pairs.filter(|_| has_one_panel).map(|pairs| discordant(&pairs));
    Difference {
        group: group.name.clone(),
        against: base.name.clone(),
        seeds: [own.len(), other.len()],
        paired: is_paired,
        window: at,
        interval: spread.map(|spread| spread.interval(at)),
        p: spread.map(|spread| spread.p(at)),
        p_holm: None,
        bootstrap: has_one_panel
            .then(|| bootstrap::interval(&shares(&own), &shares(&other), is_paired, draws))
            .flatten(),
        last,
        last_interval: last_spread.map(|spread| spread.interval(last)),
        discordant,
        p_mcnemar: discordant.map(|[more, fewer]| mcnemar(more, fewer)),
        detectable: spread.map(|spread| spread.detectable(comparisons)),
        exceeds_noise: false,
        words: String::new(),
    }
}

/// Counts pairs of seed and task by the group that won more samples of the last evaluation.
fn discordant(pairs: &[(&Run, &Run)]) -> [u64; 2] {
    let mut counts = [0, 0];
    for (own, other) in pairs {
        let (own, other) = (evaluations(own), evaluations(other));
        let last = own.last().zip(other.last()).map(|((_, own), (_, other))| own.0.iter().zip(&other.0));
        for (own, other) in last.into_iter().flatten() {
            counts[0] += u64::from(own > other);
            counts[1] += u64::from(own < other);
        }
    }
    counts
}

/// Corrects for the number of differences, and says the verdicts.
fn correct(differences: &mut [Difference]) {
    let holm_of = |p: &dyn Fn(&Difference) -> Option<f64>, differences: &[Difference]| {
        let known: Vec<f64> = differences.iter().filter_map(p).collect();
        let mut adjusted = holm(&known).into_iter();
        differences.iter().map(|difference| p(difference).and_then(|_| adjusted.next())).collect::<Vec<_>>()
    };
    let window = holm_of(&|difference| difference.p, differences);
    let mcnemar = holm_of(&|difference| difference.p_mcnemar, differences);
    let comparisons = window.iter().flatten().count();
    for ((difference, p), p_mcnemar) in differences.iter_mut().zip(window).zip(mcnemar) {
        difference.p_holm = p;
        difference.p_mcnemar = p_mcnemar;
        let misses_zero = difference.bootstrap.is_none_or(|[low, high]| low > 0.0 || high < 0.0);
        difference.exceeds_noise = p.is_some_and(|p| p < CALL) && misses_zero;
        difference.words = words::verdict(difference, comparisons);
    }
}
