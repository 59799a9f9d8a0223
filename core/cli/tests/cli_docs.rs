//! docs/cli.md equals the command line. `NESTOR_WRITE_DOCS=1 cargo test --release -p nestor-cli --test cli_docs` writes it.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::{Arg, ArgAction, Command};

const REMEDY: &str = "run NESTOR_WRITE_DOCS=1 cargo test --release -p nestor-cli --test cli_docs";

const INTRODUCTION: &str = "\
# Command line

`nestor COMMAND --help` prints the same text. `cargo test --release -p nestor-cli --test cli_docs` compares this page with the
program. The examples run in the order of this page, from the root of the repository.

";

/// The command whose example does not end by itself.
const ENDLESS: &str = "nestor serve";

/// The commands that have no subcommands, with their full names.
fn leaves(command: &Command) -> Vec<&Command> {
    let own = command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    own.flat_map(|sub| if sub.has_subcommands() { leaves(sub) } else { vec![sub] }).collect()
}

fn full_name(command: &Command) -> &str {
    command.get_bin_name().unwrap_or_default()
}

/// The example commands in the text after a command's options.
fn examples(command: &Command) -> Vec<String> {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines = text.strip_prefix("Example:\n").unwrap_or_default().lines();
    lines.map(|line| line.trim().to_string()).take_while(|line| !line.is_empty()).collect()
}

/// A row of a table of arguments: name, default and meaning.
fn row(arg: &Arg) -> String {
    let values: Vec<&str> = arg.get_value_names().into_iter().flatten().map(|name| name.as_str()).collect();
    let takes_value = !matches!(arg.get_action(), ArgAction::SetTrue);
    let name = match arg.get_long() {
        Some(long) if takes_value => format!("--{long} {}", values.join(" ")),
        Some(long) => format!("--{long}"),
        None => values.join(" "),
    };
    let defaults: Vec<_> =
        arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    let default = if arg.is_required_set() { "required".to_string() } else { defaults.join(" ") };
    let mut meaning = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let choices: Vec<_> = arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    // A value of a truth argument shows its choices in its name.
    if takes_value && !choices.is_empty() && !name.contains("true|false") {
        let _ = write!(meaning, " ({})", choices.join(", "));
    }
    if matches!(arg.get_action(), ArgAction::Append) && arg.get_long().is_some() {
        meaning += "; may be repeated";
    }
    let cell = |text: &str| text.replace('|', "\\|");
    let default = if takes_value { cell(&default) } else { String::new() };
    format!("| `{}` | {default} | {} |\n", cell(&name), cell(&meaning))
}

fn page(program: &Command) -> Result<String> {
    let mut page = INTRODUCTION.to_string();
    page += "| command | purpose |\n|---|---|\n";
    for command in leaves(program) {
        let (name, about) = (full_name(command), command.get_about().context("a command has a purpose")?);
        writeln!(page, "| [`{name}`](#{}) | {about} |", name.replace(' ', "-"))?;
    }
    let codes = program.get_after_help().map(ToString::to_string).unwrap_or_default();
    let codes = codes.split_once("Exit codes:\n").context("the program lists its exit codes")?.1;
    page += "\n## Exit codes\n\n| code | meaning |\n|---|---|\n";
    for line in codes.lines() {
        let (code, meaning) = line.trim().split_once(' ').context("an exit code has a meaning")?;
        writeln!(page, "| {code} | {} |", meaning.trim())?;
    }
    for command in leaves(program) {
        let about = command.get_about().context("a command has a purpose")?;
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").trim();
        write!(page, "\n## {}\n\n{about}.\n\n```text\n{usage}\n```\n\n", full_name(command))?;
        let shown = |arg: &&Arg| !arg.is_hide_set() && arg.get_id() != "help" && arg.get_id() != "version";
        let rows: String = command.get_arguments().filter(shown).map(row).collect();
        if !rows.is_empty() {
            write!(page, "| argument | default | meaning |\n|---|---|---|\n{rows}\n")?;
        }
        if full_name(command) == ENDLESS {
            page += "<!-- not run: it answers until a signal ends it -->\n";
        }
        write!(page, "```sh\n{}\n```\n", examples(command).join("\n"))?;
    }
    Ok(page)
}

fn program() -> Command {
    let mut program = nestor_args::command();
    program.build();
    program
}

#[test]
fn the_page_is_up_to_date() -> Result<()> {
    let wanted = page(&program())?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    if std::env::var_os("NESTOR_WRITE_DOCS").is_some() {
        std::fs::write(&path, &wanted)?;
    }
    let found = std::fs::read_to_string(&path).with_context(|| format!("docs/cli.md: {REMEDY}"))?;
    ensure!(found == wanted, "docs/cli.md is not up to date: {REMEDY}");
    Ok(())
}

/// A command and all commands in it.
fn whole_tree(command: &Command) -> Vec<&Command> {
    let own = command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    std::iter::once(command).chain(own.flat_map(whole_tree)).collect()
}

#[test]
fn every_command_has_an_example_that_parses() -> Result<()> {
    for command in whole_tree(&program()) {
        let examples = examples(command);
        ensure!(!examples.is_empty(), "{} has no example: add one to core/args/src/lib.rs", full_name(command));
        for example in examples {
            let parse = |words: &[&str]| nestor_args::command().try_get_matches_from(words).context(example.clone());
            let words: Vec<&str> = example.split_whitespace().collect();
            parse(&words)?;
            // `launch` takes any words as its command.
            if let Some(inner) = example.strip_prefix("nestor launch --nproc 2 ") {
                parse(&[&["nestor"], &inner.split_whitespace().collect::<Vec<_>>()[..]].concat())?;
            }
        }
    }
    Ok(())
}
