//! The choices of `nestor init`: from the arguments, else from the person at the terminal.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nestor_args::InitArgs;
use nestor_plugin::suggest;

use crate::input_error;
use crate::plugin::{Kind, Plugins};

/// The word for a network with random weights.
pub const NEW: &str = "new";

/// The three parts of a recipe.
pub struct Choices {
    pub env: String,
    pub estimator: String,
    pub model: String,
}

impl Choices {
    /// Takes the arguments, and asks for those that are missing. Without a terminal, the model is `new` and a missing
    /// plugin is an error that lists the choices.
    pub fn of(args: &InitArgs, plugins: &Plugins) -> Result<Self> {
        let asks = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        let all = plugins.list()?;
        let ids = |kind| {
            let of_kind = all.iter().filter(|found| found.kind == kind);
            of_kind.map(|found| (found.id.as_str(), found.doc.as_str())).collect::<Vec<_>>()
        };
        // A plugin with an example of its config is one to begin with.
        let default = |kind| {
            let of_kind = || all.iter().filter(|found| found.kind == kind);
            let with_example = of_kind().find(|found| !found.schema["examples"].is_null());
            with_example.or_else(|| of_kind().next()).map_or("", |found| found.id.as_str())
        };
        let plugin = |given: &Option<String>, option: &str, kind| match given {
            Some(given) => Ok(given.clone()),
            None if asks => {
                let question = Question { option, known: &ids(kind), default: default(kind) };
                question.ask(&mut std::io::stdin().lock(), &mut std::io::stderr())
            }
            None => {
                let known = ids(kind).iter().map(|(id, _)| *id).collect::<Vec<_>>().join(", ");
                Err(input_error!("--{option} is missing; known: {known}, or the path of a plugin file"))
            }
        };
        let env = plugin(&args.env, "env", Kind::Environment)?;
        let estimator = plugin(&args.estimator, "estimator", Kind::Estimator)?;
        for (kind, given) in [(Kind::Environment, &env), (Kind::Estimator, &estimator)] {
            plugins.find(kind, given)?;
        }
        let model = match &args.model {
            None if asks => ask_model(&mut std::io::stdin().lock(), &mut std::io::stderr())?,
            given => given.clone().unwrap_or_else(|| NEW.into()),
        };
        Ok(Self { env, estimator, model })
    }

    /// The recipe's default file, ENV_ESTIMATOR.yaml.
    pub fn file(&self) -> PathBuf {
        let name = |plugin: &str| {
            let (file, id) = plugin.split_once('#').unwrap_or((plugin, ""));
            let stem = Path::new(file).file_stem().unwrap_or_default().to_string_lossy();
            if id.is_empty() {
                stem.trim_start_matches("lib").trim_start_matches("nestor_").to_string()
            } else {
                id.into()
            }
        };
        PathBuf::from(format!("{}_{}.yaml", name(&self.env), name(&self.estimator)))
    }
}

/// A question for a plugin.
struct Question<'a> {
    option: &'a str,
    /// Ids with their descriptions.
    known: &'a [(&'a str, &'a str)],
    /// The id of an empty answer.
    default: &'a str,
}

impl Question<'_> {
    /// Asks for one of the known ids, by number or by name, until there is a valid answer.
    fn ask(&self, answers: &mut impl BufRead, out: &mut impl Write) -> Result<String> {
        let Self { option, known, default } = *self;
        let ids: Vec<&str> = known.iter().map(|(id, _)| *id).collect();
        for (number, (id, doc)) in known.iter().enumerate() {
            writeln!(out, "{:>3}  {id:14}  {doc}", number + 1)?;
        }
        ensure!(!default.is_empty(), "there is no plugin for --{option}");
        loop {
            let answer = line(&format!("{option} [{default}]"), answers, out)?;
            let by_number = answer.parse::<usize>().ok().and_then(|number| ids.get(number.checked_sub(1)?));
            if answer.is_empty() {
                return Ok(default.into());
            }
            if let Some(id) = by_number.or_else(|| ids.iter().find(|id| **id == answer)) {
                return Ok((*id).into());
            }
            if Path::new(&answer).is_file() || answer.contains('#') {
                return Ok(answer);
            }
            writeln!(out, "`{answer}` is unknown{}", suggest(&answer, &ids))?;
        }
    }
}

fn ask_model(answers: &mut impl BufRead, out: &mut impl Write) -> Result<String> {
    let answer = line("model: `new`, or the path or id of a model [new]", answers, out)?;
    Ok(if answer.is_empty() { NEW.into() } else { answer })
}

fn line(question: &str, answers: &mut impl BufRead, out: &mut impl Write) -> Result<String> {
    write!(out, "{question}: ")?;
    out.flush()?;
    let mut answer = String::new();
    if answers.read_line(&mut answer).context("reading the answer")? == 0 {
        return Err(input_error!("the answers ended before the last question; give --env, --estimator and --model"));
    }
    Ok(answer.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_number_a_name_or_the_default() {
        let known = [("maze", "A maze"), ("shop", "A shop")];
        for (answers, chosen) in [("2\n", "shop"), ("maze\n", "maze"), ("\n", "shop"), ("0\n3\nshp\nshop\n", "shop")] {
            let mut asked = Vec::new();
            let question = Question { option: "env", known: &known, default: "shop" };
            assert_eq!(question.ask(&mut answers.as_bytes(), &mut asked).expect(answers), chosen, "{answers}");
            let asked = String::from_utf8(asked).expect("text");
            assert_eq!(asked.contains("did you mean `shop`?"), answers.contains("shp"), "{asked}");
        }
        let question = Question { option: "env", known: &known, default: "shop" };
        assert!(question.ask(&mut &b""[..], &mut Vec::new()).is_err());
    }
}
