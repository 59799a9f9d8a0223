//! `nestor import-prompts`: turns the prompts of another project, verl-agent, into templates for `rollout.template`.
//!
//! Nestor's own prompts say the same in other words. The sentences of the reference are not part of Nestor; who has its
//! repository can import them. `reference.json` holds their SHA-256 sums, so an import is exact or says what changed.

#![forbid(unsafe_code)]

mod format;
mod python;
mod report;
mod template;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use format::{Format, Inputs};
use nestor_args::ImportArgs;
use nestor_plugin::files::{self, SMALL};
use nestor_recipe::input_error;
pub use report::{Rendering, Report, State, Template};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use template::{TARGETS, Target};

/// The place of the prompts in the reference's repository.
const FOLDER: &str = "agent_system/environments/prompts";
/// The place of all prompts in its branch `paper_version`.
const SINGLE: &str = "agent_system/environments/prompts.py";
/// The sums of commit 20bd331 of the reference.
const REFERENCE: &str = include_str!("reference.json");

/// The known sums, and the inputs that their renderings were made with.
#[derive(Debug, Deserialize)]
struct Sums {
    templates: Vec<Sum>,
    #[serde(default)]
    inputs: Inputs,
}

/// The sums of one prompt.
#[derive(Debug, Deserialize)]
struct Sum {
    file: String,
    name: String,
    sha256: String,
    /// The sum of the prompt filled with the inputs.
    rendered_sha256: Option<String>,
}

/// The string constants of each Python file that is there.
type Sources = BTreeMap<String, BTreeMap<String, String>>;

/// Reads the prompts below `args.dir`, compares them with their sums, and writes the templates. With a prompt that is not
/// the known one it writes nothing, unless `args.force` is set; [`Report::refusal`] is then the error.
///
/// # Errors
/// If a file cannot be read or written.
pub fn import(args: &ImportArgs) -> Result<Report> {
    let sums = Sums::read(args.sums.as_deref())?;
    let sources = read_sources(&args.dir, &sums)?;
    let templates = states(&sums, &sources);
    let mut report = Report { templates, written: Vec::new(), left_out: Vec::new(), forced: args.force };
    if report.differs() && !args.force {
        return Ok(report);
    }
    let mut files = Vec::new();
    for target in TARGETS {
        match target_text(target, &sources, &report) {
            Ok(Some(text)) => files.push((args.out.join(target.path), text)),
            Ok(None) => {}
            Err(problem) => {
                report.left_out.push(format!("{} was not written: {}: {problem}", target.path, target.source))
            }
        }
    }
    if !args.force {
        files.iter().try_for_each(|(path, text)| check_free(path, text))?;
    }
    for (path, text) in files {
        let context = || format!("could not write {}", path.display());
        fs::create_dir_all(path.parent().unwrap_or(Path::new(""))).with_context(context)?;
        fs::write(&path, text).with_context(context)?;
        report.written.push(path);
    }
    Ok(report)
}

impl Sums {
    fn read(file: Option<&Path>) -> Result<Self> {
        let Some(file) = file else { return serde_json::from_str(REFERENCE).context("the sums of the reference") };
        let text = read(file)?;
        serde_json::from_str(&text).map_err(|error| {
            input_error!(
                "{}: {error}; a file of sums has `templates`, a list of `file`, `name` and `sha256`, and `inputs`",
                file.display()
            )
        })
    }

    fn find(&self, file: &str, name: &str) -> Option<&Sum> {
        self.templates.iter().find(|sum| sum.file == file && sum.name == name)
    }
}

fn read(path: &Path) -> Result<String> {
    files::read_to_string(path, SMALL).map_err(|error| input_error!("{}: {error}", path.display()))
}

/// The constants of a single file, each under the name of the file that has it in the reference's main branch. `None` without
/// such a file.
fn read_single(dir: &Path, sums: &Sums) -> Result<Option<Sources>> {
    let places = [dir.to_path_buf(), dir.join(SINGLE), dir.join("prompts.py")];
    let Some(path) = places.iter().find(|path| path.is_file()) else { return Ok(None) };
    let targets = TARGETS.iter().flat_map(|target| target.names().map(|name| (target.source, name)));
    let known = sums.templates.iter().map(|sum| (sum.file.as_str(), sum.name.as_str()));
    let places: BTreeMap<&str, &str> = targets.chain(known).map(|(file, name)| (name, file)).collect();
    let mut sources = Sources::new();
    for (name, text) in python::constants(&path.display().to_string(), &read(path)?)? {
        let file = places.get(name.as_str()).copied().unwrap_or("prompts.py");
        sources.entry(file.into()).or_default().insert(name, text);
    }
    Ok(Some(sources))
}

/// The constants of every file that has sums or makes a template.
fn read_sources(dir: &Path, sums: &Sums) -> Result<Sources> {
    if !dir.join(FOLDER).is_dir()
        && let Some(sources) = read_single(dir, sums)?
    {
        return Ok(sources);
    }
    let inside = dir.join(FOLDER);
    let folder = if inside.is_dir() { inside.as_path() } else { dir };
    let mut sources = Sources::new();
    let wanted = TARGETS.iter().map(|target| target.source).chain(sums.templates.iter().map(|sum| sum.file.as_str()));
    for name in wanted {
        let path = folder.join(name);
        match files::read_to_string(&path, SMALL) {
            Ok(text) if !sources.contains_key(name) => {
                let constants = python::constants(&path.display().to_string(), &text)?;
                sources.insert(name.into(), constants.into_iter().collect());
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(input_error!("{}: {error}", path.display())),
        }
    }
    if sources.is_empty() {
        return Err(input_error!(
            "{} has no prompts such as {}: give the reference's repository, or its folder {FOLDER}",
            dir.display(),
            TARGETS[0].source
        ));
    }
    Ok(sources)
}

/// Compares every prompt that has a sum or makes a template, and names the other constants.
fn states(sums: &Sums, sources: &Sources) -> Vec<Template> {
    let known = sums.templates.iter().map(|sum| (sum.file.as_str(), sum.name.as_str()));
    let used = TARGETS.iter().flat_map(|target| target.names().map(|name| (target.source, name)));
    let found = sources.iter().flat_map(|(file, names)| names.keys().map(|name| (file.as_str(), name.as_str())));
    let mut states: Vec<Template> = Vec::new();
    for (file, name) in known.chain(used.filter(|(file, _)| sources.contains_key(*file))).chain(found) {
        if states.iter().any(|state| state.file == file && state.name == name) {
            continue;
        }
        let (sum, text) = (sums.find(file, name), sources.get(file).and_then(|names| names.get(name)));
        let sha256 = text.map(|text| sha256(text));
        let state = match (&sha256, sum) {
            (None, _) => State::Missing,
            (Some(_), None) => State::Unknown,
            (Some(found), Some(sum)) if *found == sum.sha256 => State::Equal,
            _ => State::Changed,
        };
        let rendering = text.filter(|_| state == State::Equal).zip(sum);
        let rendering = rendering.map_or(Rendering::Unchecked, |(text, sum)| rendering_of(text, sum, &sums.inputs));
        let expected = sum.map(|sum| sum.sha256.clone());
        let (file, name) = (file.into(), name.into());
        let used = TARGETS.iter().any(|target| target.source == file && target.names().any(|own| own == name));
        states.push(Template { file, name, sha256, expected, state, rendering, used });
    }
    states
}

/// Compares a prompt filled as a template, and as Python would fill it, with the sum of the filled prompt.
fn rendering_of(text: &str, sum: &Sum, inputs: &Inputs) -> Rendering {
    let Some(expected) = &sum.rendered_sha256 else { return Rendering::Unchecked };
    let rendered = Format::parse(text).ok().and_then(|format| Some((format.render(inputs)?, format.fill(inputs)?)));
    match rendered {
        Some((jinja, python)) if jinja == python && sha256(&jinja) == *expected => Rendering::Equal,
        _ => Rendering::Changed,
    }
}

/// The text of a template to write, or the reason why there is none; `None` if the reference lacks one of its prompts.
fn target_text(target: &Target, sources: &Sources, report: &Report) -> Result<Option<String>, String> {
    let mut forms = Vec::new();
    for name in target.names() {
        let Some(text) = sources.get(target.source).and_then(|names| names.get(name)) else { return Ok(None) };
        let form = if target.verbatim { Ok(Format::verbatim(text)) } else { Format::parse(text) };
        forms.push(form.map_err(|problem| format!("{name}: {problem}"))?);
    }
    let mut notes = vec![format!("Written by `nestor import-prompts` from {}:", target.source)];
    notes.extend(target.names().filter_map(|name| report.find(target.source, name)).map(Template::note));
    target.write(&notes, &forms).map(Some)
}

/// Fails if another text is there.
fn check_free(path: &Path, text: &str) -> Result<()> {
    match files::read(path, SMALL) {
        Ok(there) if there == text.as_bytes() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Ok(_) => Err(input_error!(
            "{} is there with another content: choose another --out, or replace it with --force",
            path.display()
        )),
        Err(error) => Err(input_error!("{}: {error}", path.display())),
    }
}

/// The SHA-256 of a text's UTF-8, in hexadecimal.
fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
