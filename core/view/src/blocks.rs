//! The episodes of all runs as data blocks of the page: a summary for each iteration, turns for each group kept.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;
use serde_json::Value;

use crate::ViewError;
use crate::budget::{Budget, FileJob};
use crate::images::Held;
use crate::read::{Episodes, FileKey, RunDir, episode_bytes};
use crate::turns::{GroupTurns, number};

/// The entry of one file of episodes in the page's index.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FileEntry {
    pub iteration: u64,
    pub evaluation: bool,
    pub episodes: usize,
    pub won: usize,
    pub damaged: usize,
    /// Episodes whose turns are in the page, by group.
    pub kept: BTreeMap<u64, usize>,
}

impl FileEntry {
    pub fn of(key: FileKey, found: &Episodes, kept: BTreeMap<u64, usize>) -> Self {
        Self {
            iteration: key.iteration,
            evaluation: key.evaluation,
            episodes: found.episodes.len(),
            won: found.episodes.iter().filter(|(episode, _)| episode.won).count(),
            damaged: found.damaged,
            kept,
        }
    }
}

/// Summaries of one file's episodes, by column.
#[derive(Default, Serialize)]
pub(crate) struct FileSummary<'a> {
    group: Vec<u64>,
    episode: Vec<u64>,
    sample: Vec<Option<u64>>,
    /// As text: a task number may exceed the integers of a double.
    task: Vec<String>,
    /// Index into `types`, or -1.
    task_type: Vec<i64>,
    types: Vec<&'a str>,
    won: Vec<u8>,
    #[serde(rename = "return")]
    returns: Vec<Value>,
    turns: Vec<usize>,
    tokens: Vec<u64>,
    invalid: Vec<usize>,
    /// Errors of failed episodes, by row.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    failures: BTreeMap<usize, &'a str>,
}

/// Collects the blocks.
pub(crate) struct Rollouts {
    /// The data blocks.
    pub html: String,
    /// By run.
    pub files: Vec<Vec<FileEntry>>,
    pub episodes: usize,
    pub kept: usize,
    pub damaged: usize,
    /// The images of the episodes whose turns are in the page.
    pub images: Held,
    /// Run directories.
    dirs: Vec<PathBuf>,
    budget: Budget,
    /// Bytes of summaries written, to predict those to come.
    summary_bytes: usize,
    summaries: usize,
}

impl Rollouts {
    pub fn new(runs: &[RunDir], max_bytes: u64) -> Self {
        Self {
            html: String::new(),
            files: runs.iter().map(|_| Vec::new()).collect(),
            episodes: 0,
            kept: 0,
            damaged: 0,
            images: Held::default(),
            dirs: runs.iter().map(|run| run.dir.clone()).collect(),
            budget: Budget::new(max_bytes),
            summary_bytes: 0,
            summaries: 0,
        }
    }

    /// Adds the first of the remaining files.
    pub fn add(&mut self, remaining: &[FileJob]) -> Result<(), ViewError> {
        let Some(job) = remaining.first() else { return Ok(()) };
        let content = episode_bytes(&job.file.path)?;
        let found = Episodes::parse(&content, job.key.evaluation);

        let before = self.html.len();
        self.html.push_str(&block(&format!("s-{}-{}", job.run, job.key), &encode(&summary(&found))));
        let bytes = self.html.len() - before + 40; // with its entry in the index
        self.summary_bytes += bytes;
        self.summaries += 1;
        self.budget.take(bytes);

        let kept = if job.wanted { self.add_turns(remaining, &found)? } else { BTreeMap::new() };
        self.episodes += found.episodes.len();
        self.kept += kept.values().sum::<usize>();
        self.damaged += found.damaged;
        self.files[job.run].push(FileEntry::of(job.key, &found, kept));
        Ok(())
    }

    /// Adds turns of as many groups as the budget has room for; returns the episodes kept by group.
    fn add_turns(&mut self, remaining: &[FileJob], found: &Episodes) -> Result<BTreeMap<u64, usize>, ViewError> {
        let job = &remaining[0];
        let reserved = (self.summary_bytes / self.summaries * (remaining.len() - 1)) as f64;
        let mut room = self.budget.open(remaining, reserved);
        // Readers look at the newest iteration first: it gets a group even if an equal share is too small for one.
        let mut must = job.newest;
        if must {
            room = room.max(self.budget.half(reserved, self.files.len()));
        }
        let mut kept = BTreeMap::new();
        for (group, rows) in &groups(found) {
            let part = |count: usize, with_images: bool| GroupPart {
                run: job.run,
                id: format!("t-{}-{}-{group}", job.run, job.key),
                rows: &rows[..count],
                with_images,
            };
            let mut count = rows.len();
            let mut bytes = self.add_group(&part(count, true), found, room, must)?;
            // Siblings make sense of an episode, so groups stay whole, unless that would leave nothing to see.
            while must && bytes.is_none() && count > 1 {
                count /= 2;
                bytes = self.add_group(&part(count, true), found, room, must)?;
            }
            if must && bytes.is_none() {
                bytes = self.add_group(&part(count, false), found, room, must)?;
            }
            let Some(bytes) = bytes else { break };
            kept.insert(*group, count);
            room = if must { self.budget.credit() } else { room - bytes as f64 };
            must = false;
            if count < rows.len() {
                break;
            }
        }
        self.budget.close(kept.values().sum::<usize>() == found.episodes.len());
        Ok(kept)
    }

    /// Adds turns of these episodes, and the images that the page lacks, if they fit into `room`; returns their bytes. Turns
    /// that are likely to be far too large are not tried, unless `must` is set.
    fn add_group(
        &mut self,
        part: &GroupPart,
        found: &Episodes,
        room: f64,
        must: bool,
    ) -> Result<Option<usize>, ViewError> {
        let GroupPart { run, id, rows, with_images } = part;
        let file_bytes: usize = rows.iter().map(|&row| found.episodes[row].1).sum();
        if !must && 0.7 * self.budget.predict(file_bytes) > room {
            return Ok(None);
        }
        let picked: Vec<_> = rows.iter().map(|&row| (row, &found.episodes[row].0)).collect();
        let turns = block(id, &encode(&GroupTurns::of(&picked)));
        let images = if *with_images { self.images.missing(&picked) } else { Vec::new() };
        let room = room - turns.len() as f64;
        let Some(images) = self.images.elements(&self.dirs[*run], &images, room)? else {
            return Ok(None);
        };
        let bytes = images.html.len() + turns.len();
        self.budget.spend(bytes, file_bytes);
        // The turns come last: once the browser has read them, it has their images too.
        self.html.push_str(&images.html);
        self.html.push_str(&turns);
        self.images.add(images);
        Ok(Some(bytes))
    }
}

/// Episodes of one group, to be added to the page.
struct GroupPart<'a> {
    run: usize,
    /// The id of their block.
    id: String,
    rows: &'a [usize],
    with_images: bool,
}

/// Returns the rows of each group's episodes.
pub(crate) fn groups(found: &Episodes) -> BTreeMap<u64, Vec<usize>> {
    let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (row, (episode, _)) in found.episodes.iter().enumerate() {
        groups.entry(episode.group).or_default().push(row);
    }
    groups
}

pub(crate) fn summary<'a>(found: &'a Episodes<'a>) -> FileSummary<'a> {
    let mut columns = FileSummary::default();
    for (row, (episode, _)) in found.episodes.iter().enumerate() {
        columns.failures.extend(episode.failure.as_deref().map(|failure| (row, failure)));
        columns.group.push(episode.group);
        columns.episode.push(episode.episode);
        columns.sample.push(episode.sample);
        columns.task.push(episode.task.to_string());
        let place = episode.task_type.as_deref().map(|kind| {
            columns.types.iter().position(|&known| known == kind).unwrap_or_else(|| {
                columns.types.push(kind);
                columns.types.len() - 1
            })
        });
        columns.task_type.push(place.map_or(-1, |place| place as i64));
        columns.won.push(u8::from(episode.won));
        columns.returns.push(number(episode.episode_return, 5));
        columns.turns.push(episode.steps.len());
        columns.tokens.push(episode.steps.iter().map(|step| step.response_tokens).sum());
        columns.invalid.push(episode.steps.iter().filter(|step| step.valid == Some(false)).count());
    }
    columns
}

/// JSON, deflated (zlib), in base64: no byte of a run's text can end the element that holds it.
pub(crate) fn encode(value: &impl Serialize) -> String {
    let json = serde_json::to_vec(value).unwrap_or_default();
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
    // Writing to memory cannot fail.
    let _ = encoder.write_all(&json);
    STANDARD.encode(encoder.finish().unwrap_or_default())
}

/// Makes a block that browsers treat as data, not as a script.
pub(crate) fn block(id: &str, data: &str) -> String {
    format!("<script type=\"application/zlib\" id=\"{id}\">{data}</script>\n")
}
