//! The result of an import: the state of every prompt, and the files that were written.

use std::fmt;
use std::path::PathBuf;

use nestor_recipe::input_error;
use serde::Serialize;

/// The state of every prompt, and the files that were written.
#[derive(Debug, Serialize)]
pub struct Report {
    pub templates: Vec<Template>,
    pub written: Vec<PathBuf>,
    /// Templates that could not be made, with the reasons.
    pub left_out: Vec<String>,
    /// True if changed prompts were written too.
    pub forced: bool,
}

/// One string constant of the reference.
#[derive(Debug, Serialize)]
pub struct Template {
    /// The Python file.
    pub file: String,
    pub name: String,
    /// The SHA-256 found; none for a missing prompt.
    pub sha256: Option<String>,
    /// The SHA-256 known.
    pub expected: Option<String>,
    pub state: State,
    pub rendering: Rendering,
    /// True if it is part of a template to write.
    pub used: bool,
}

/// A prompt against its sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Equal,
    Changed,
    /// It has no sum.
    Unknown,
    /// It has a sum, or makes a template, and is no string constant of its file.
    Missing,
}

/// A filled prompt against its sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rendering {
    Equal,
    Changed,
    /// It has no sum, or the prompt itself is not the known one.
    Unchecked,
}

impl Template {
    /// The differences from the sums, as the end of a sentence that begins with the name.
    fn difference(&self) -> Option<String> {
        let (found, expected) = (self.sha256.as_deref().unwrap_or("none"), self.expected.as_deref().unwrap_or("none"));
        match (self.state, self.rendering) {
            (State::Changed, _) => Some(format!("has changed: its sum is {found}, the known one {expected}")),
            (State::Missing, _) => Some("is no string constant there".into()),
            (State::Unknown, _) if self.used => Some(format!("has no known sum: its sum is {found}")),
            (_, Rendering::Changed) => {
                Some("is the known one, but filled with the inputs it differs from its sum".into())
            }
            _ => None,
        }
    }

    /// A line for the comment of a template.
    pub(crate) fn note(&self) -> String {
        let sum = self.sha256.as_deref().unwrap_or("none");
        let expected = self.expected.as_deref().map_or("no known sum".into(), |known| format!("known sum {known}"));
        match self.state {
            State::Equal => format!("{} {sum} equal", self.name),
            _ => format!("{} {sum} {} ({expected})", self.name, self.state),
        }
    }
}

impl Report {
    pub(crate) fn find(&self, file: &str, name: &str) -> Option<&Template> {
        self.templates.iter().find(|template| template.file == file && template.name == name)
    }

    /// True if a prompt that makes a template is not the known one. Others are listed, but concern nobody.
    pub fn differs(&self) -> bool {
        self.templates.iter().any(|template| template.used && template.difference().is_some())
    }

    /// The error of an import that differs and was not forced, or that left out a template.
    pub fn refusal(&self) -> Option<anyhow::Error> {
        if !self.left_out.is_empty() {
            return Some(input_error!("{}; the other templates were written", self.left_out.join("; ")));
        }
        let differences =
            self.templates.iter().filter(|template| template.used).filter_map(|template| {
                Some(format!("{}: {} {}", template.file, template.name, template.difference()?))
            });
        let differences: Vec<_> = differences.collect();
        (!self.forced && !differences.is_empty()).then(|| {
            input_error!(
                "{}; nothing was written: take the version of the reference with the known sums, give those of yours with \
                 --sums, or write what is there with --force",
                differences.join("; ")
            )
        })
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Equal => "equal",
            Self::Changed => "CHANGED",
            Self::Unknown => "unknown",
            Self::Missing => "MISSING",
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |text: fn(&Template) -> &str| self.templates.iter().map(|t| text(t).len()).max().unwrap_or(0);
        let (file, name) = (width(|t| &t.file), width(|t| &t.name));
        for template in &self.templates {
            let sum = template.sha256.as_deref().unwrap_or("-");
            write!(f, "{:file$}  {:name$}  {sum:64}  {}", template.file, template.name, template.state)?;
            match template.rendering {
                Rendering::Equal => writeln!(f, ", filled: equal")?,
                Rendering::Changed => writeln!(f, ", filled: CHANGED")?,
                Rendering::Unchecked => writeln!(f)?,
            }
        }
        for path in &self.written {
            writeln!(f, "wrote {}", path.display())?;
        }
        Ok(())
    }
}
