//! The tables in docs/ equal the code. `NESTOR_WRITE_DOCS=1 cargo test --release -p nestor --test docs` writes them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

const REMEDY: &str = "run NESTOR_WRITE_DOCS=1 cargo test --release -p nestor --test docs";

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

fn compare(name: &str, wanted: &str) -> Result<()> {
    let path = docs(name);
    if std::env::var_os("NESTOR_WRITE_DOCS").is_some() {
        std::fs::write(&path, wanted)?;
    }
    let found = std::fs::read_to_string(&path).with_context(|| format!("docs/{name}: {REMEDY}"))?;
    ensure!(found == wanted, "docs/{name} is not up to date: {REMEDY}");
    Ok(())
}

/// The page with what stands between its marks replaced.
fn page(name: &str, table: &str) -> Result<()> {
    let text = std::fs::read_to_string(docs(name)).with_context(|| format!("docs/{name} is missing"))?;
    let (before, rest) = text.split_once("<!-- table -->\n").with_context(|| format!("docs/{name} has no table"))?;
    let (_, after) = rest.split_once("<!-- end -->").with_context(|| format!("the table of docs/{name} has no end"))?;
    compare(name, &format!("{before}<!-- table -->\n{table}<!-- end -->{after}"))
}

#[test]
fn schema() -> Result<()> {
    compare("recipe.schema.json", &(serde_json::to_string_pretty(&nestor::recipe::json_schema())? + "\n"))
}

#[test]
fn recipe_keys() -> Result<()> {
    page("recipe.md", &nestor::recipe::markdown())
}

#[test]
fn metrics() -> Result<()> {
    page("metrics.md", &nestor::track::markdown())
}
