//! The tables in docs/ equal the code, and the keys and metrics that the docs name exist.
//! `NESTOR_WRITE_DOCS=1 cargo test --release --workspace --test all docs` writes the tables.

use crate::support;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use nestor::agent::PromptVariables;
use nestor::track::METRICS;
use nestor_host::{Kind, Plugins};
use nestor_recipe::{FOREIGN, Key, json_schema, keys, keys_of, table};

const REMEDY: &str = "run NESTOR_WRITE_DOCS=1 cargo test --release --workspace --test all docs";
const END: &str = "<!-- end -->";

fn docs(name: &str) -> PathBuf {
    support::workspace().join("docs").join(name)
}

fn read(name: &str) -> Result<String> {
    std::fs::read_to_string(docs(name)).with_context(|| format!("docs/{name}: {REMEDY}"))
}

fn writes() -> bool {
    std::env::var_os("NESTOR_WRITE_DOCS").is_some()
}

/// Splits a page into the text before a table, the table between `mark` and the next end mark, and the rest.
fn split<'a>(page: &'a str, mark: &str) -> Result<[&'a str; 3]> {
    let start = format!("{mark}\n");
    ensure!(page.matches(&start).count() == 1, "the page needs the line {mark} once");
    let (before, rest) = page.split_once(&start).context("counted above")?;
    let (table, after) = rest.split_once(END).with_context(|| format!("no {END} after {mark}"))?;
    ensure!(!table.contains("<!--"), "another mark before the {END} of {mark}");
    Ok([before, table, after])
}

/// Fails unless the page's table is the one that the code generates.
fn check(page: &str, mark: &str, generated: &str) -> Result<()> {
    let [_, found, _] = split(page, mark)?;
    let mut lines = found.lines().zip(generated.lines());
    if let Some((found, generated)) = lines.find(|(found, generated)| found != generated) {
        anyhow::bail!("the page has\n  {found}\nand the code\n  {generated}");
    }
    ensure!(found == generated, "{} lines, and the code has {}", found.lines().count(), generated.lines().count());
    Ok(())
}

/// Compares a page's table with the code, or writes it.
fn page(name: &str, mark: &str, generated: &str) -> Result<()> {
    if writes() {
        let text = read(name)?;
        let [before, _, after] = split(&text, mark).with_context(|| format!("docs/{name}"))?;
        std::fs::write(docs(name), format!("{before}{mark}\n{generated}{END}{after}"))?;
    }
    check(&read(name)?, mark, generated).with_context(|| format!("docs/{name} is not up to date: {REMEDY}"))
}

#[test]
fn schema() -> Result<()> {
    let wanted = serde_json::to_string_pretty(&json_schema())? + "\n";
    if writes() {
        std::fs::write(docs("recipe.schema.json"), &wanted)?;
    }
    ensure!(read("recipe.schema.json")? == wanted, "docs/recipe.schema.json is not up to date: {REMEDY}");
    Ok(())
}

/// Both tables of one page, one after the other, since both may write it.
#[test]
fn recipe() -> Result<()> {
    page("recipe.md", "<!-- table -->", &table(&keys()))?;
    page("recipe.md", "<!-- table: template -->", &template_variables()?)
}

#[test]
fn metrics() -> Result<()> {
    page("metrics.md", "<!-- table -->", &nestor::track::markdown())
}

#[test]
fn coming_from() -> Result<()> {
    page("coming_from.md", "<!-- tables -->", FOREIGN)
}

#[test]
fn plugin_config() -> Result<()> {
    if support::bundled_plugins("estimators").is_empty() {
        return Ok(()); // a checkout without the plugins
    }
    page("plugin_config.md", "<!-- table -->", &plugin_keys()?)
}

/// The variables of a prompt template, from the struct that templates render.
fn template_variables() -> Result<String> {
    let mut text = String::from("| variable | type | meaning |\n|---|---|---|\n");
    for key in keys_of(&schemars::schema_for!(PromptVariables).to_value()) {
        ensure!(!key.doc.is_empty(), "the template variable {} has no doc comment", key.path);
        writeln!(text, "| `{}` | {} | {} |", key.path, key.kind, key.doc)?;
    }
    Ok(text)
}

/// The config keys of every plugin in the repository, from the schemas that the built files carry.
fn plugin_keys() -> Result<String> {
    let folders = [(Kind::Environment, "environments"), (Kind::Estimator, "estimators"), (Kind::Loss, "losses")];
    let mut bundled = Vec::new();
    for (kind, folder) in folders {
        let mut ids = support::bundled_plugins(folder);
        if kind == Kind::Environment {
            ids.extend(support::bridges());
        }
        ids.sort();
        bundled.extend(ids.into_iter().map(|id| (kind, folder, id)));
    }
    let plugins = Plugins::in_dir(support::build(&[]))?;
    let (mut text, mut last) = (String::new(), "");
    for (kind, folder, id) in &bundled {
        let found = plugins.find(*kind, id)?;
        if *folder != last {
            let title = folder[..1].to_uppercase() + &folder[1..];
            writeln!(text, "## {title} (`{}.config`)\n", kind.section())?;
            last = folder;
        }
        writeln!(text, "### `{id}`\n\n{}.\n", found.doc.trim_end_matches('.'))?;
        let keys = keys_of(&found.schema);
        for key in &keys {
            ensure!(!key.doc.is_empty(), "{id}: the config key {} has no doc comment", key.path);
        }
        text += &if keys.is_empty() { "No keys.\n".to_string() } else { table(&keys) };
        text.push('\n');
    }
    Ok(text)
}

/// Words in code spans that look like recipe keys or metrics but are none.
fn unknown_names(text: &str, keys: &[Key]) -> BTreeSet<String> {
    const FILES: [&str; 13] =
        ["rs", "md", "yaml", "json", "jsonl", "py", "sh", "safetensors", "cpp", "h", "so", "toml", "html"];
    let paths: BTreeSet<&str> = keys.iter().map(|key| key.path.as_str()).collect();
    let sections: BTreeSet<&str> = paths.iter().filter_map(|path| Some(path.split_once('.')?.0)).collect();
    let families: BTreeSet<&str> = METRICS.iter().filter_map(|metric| Some(metric.name.split_once('/')?.0)).collect();
    let is_word =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let unknown_key = |word: &str| {
        // Keys of a list of environments have the numbers of their entries.
        let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let parts: Vec<&str> = word.split('.').filter(|part| !is_number(part)).collect();
        let word = parts.join(".");
        let config = ["env.config.", "estimator.config."].iter().any(|start| word.starts_with(start));
        parts.len() > 1
            && parts.iter().all(|part| is_word(part))
            && sections.contains(parts[0])
            && !parts.last().is_some_and(|last| FILES.contains(last))
            && !config
            && !paths.contains(&*word)
    };
    let unknown_metric = |word: &str| {
        word.split_once('/').is_some_and(|(family, name)| families.contains(family) && is_word(name))
            && nestor::track::find(word).is_none()
            && word != "tokens/s" // a unit
    };
    let spans = text.split('`').skip(1).step_by(2).flat_map(str::split_whitespace);
    let words = spans.map(|word| word.split('=').next().unwrap_or(word).trim_matches(['\'', '"', ',', ':', ';', '.']));
    words.filter(|word| unknown_key(word) || unknown_metric(word)).map(str::to_string).collect()
}

#[test]
fn keys_and_metrics_that_the_docs_name_exist() -> Result<()> {
    let keys = keys();
    let root = support::workspace();
    let pages = std::fs::read_dir(root.join("docs"))?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let pages = pages.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let mut wrong = Vec::new();
    for path in pages.chain([root.join("README.md")]) {
        let mut text = std::fs::read_to_string(&path)?;
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if name == "docs/coming_from.md" {
            // The other columns have names of other programs.
            text = text.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit(" | ").next()).collect();
        }
        wrong.extend(unknown_names(&text, &keys).into_iter().map(|word| format!("{name}: `{word}`")));
    }
    // Their comments and messages name keys too.
    let folders =
        ["core/model/src", "core/nestor/src", "core/tools/src", "core/recipe/src"].map(|folder| root.join(folder));
    for path in folders.iter().flat_map(|folder| support::rust_files(folder)) {
        let comments = std::fs::read_to_string(&path)?;
        let comments: String = comments.lines().filter(|line| line.trim_start().starts_with("//")).collect();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        wrong.extend(unknown_names(&comments, &keys).into_iter().map(|word| format!("{name}: `{word}`")));
    }
    ensure!(wrong.is_empty(), "neither a recipe key nor a metric: {}", wrong.join(", "));
    Ok(())
}

#[test]
fn a_page_that_differs_from_the_code_fails() {
    let generated = "| a | b |\n|---|---|\n| `x` | one |\n| `y` | two |\n";
    let page = |table: &str| format!("# Title\n<!-- table -->\n{table}{END}\nmore\n");
    check(&page(generated), "<!-- table -->", generated).expect("equal");
    let wrong = [
        page(&generated.replace("one", "three")),
        page(&generated.replace("| `x` | one |\n", "")),
        page(&generated.replace("| `y` | two |\n", "")),
        page(&format!("{generated}| `z` | three |\n")),
        page(&generated.replace("|---|---|", "")),
        page(""),
        page(generated).replace(END, ""),
        page(generated).replace("<!-- table -->", ""),
        page(generated).replace("<!-- table -->\n", "<!-- table -->\n<!-- table -->\n"),
        page(generated).replace(END, "<!-- table: next -->\n<!-- end -->"),
        format!("{END}\n<!-- table -->\n{generated}"),
        generated.to_string(),
    ];
    for page in wrong {
        assert!(check(&page, "<!-- table -->", generated).is_err(), "{page}");
    }
}

#[test]
fn a_name_that_is_neither_key_nor_metric_is_found() {
    let keys = keys();
    let unknown = |text: &str| unknown_names(text, &keys).into_iter().collect::<Vec<_>>();
    let good = "`update.kl.kind`, `update.rs`, `--set 'env.config={range: 10}'`, `env.config.range`, `time/rollout_s`, \
                `model.safetensors`, `rollout.history.mode: transcript`, `loss/kl`, `policy/critic.rs`, update.none, \
                `train.jsonl`, `512 tokens/s`\n```\nnestor train --set update.kl=null\n```\n`eval/success/<task_type>`";
    assert_eq!(unknown(good), [""; 0]);
    assert_eq!(unknown("by `update.kl.estimator`; k3"), ["update.kl.estimator"]);
    assert_eq!(unknown("```\n--set update.lrr=1\n```\nand `grad/entropy`, `loss/kl`"), ["grad/entropy", "update.lrr"]);
}
