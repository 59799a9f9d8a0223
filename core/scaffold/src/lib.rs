//! Writes the project of a new plugin: it builds, passes the kit and trains, all without the network.
//!
//! `templates/` holds the files, which are those of a whole plugin named `my_plugin`. A project takes them from three folders:
//! that of its language, that of its kind, and that of both. A Rust project gets a copy of the SDK's sources and the versions
//! of Nestor's own Cargo.lock, so that cargo finds all it needs in its cache.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use include_dir::{Dir, include_dir};
use nestor_args::{Kind, Language, NewArgs};
use nestor_recipe::input_error;

static TEMPLATES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/templates");
static SDK_SOURCES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../plugins/sdk/src");
const SDK_MANIFEST: &str = include_str!("../../../plugins/sdk/Cargo.toml");
const HEADER: &str = include_str!("../../../plugins/sdk/nestor_plugin.h");
const HELPERS: &str = include_str!("../../../plugins/sdk/nestor_helpers.h");
const LOCK: &str = include_str!("../../../Cargo.lock");
/// The SDK's copy in a Rust project.
const VENDORED: &str = "vendor/nestor-plugin";
/// The first line of the SDK's manifest that a copy leaves out: dependencies and examples of its own tests.
const NOT_COPIED: &str = "[dev-dependencies]";
/// The plugin's name in the templates.
const PLACEHOLDER: &str = "my_plugin";
const LONGEST_NAME: usize = 64;
/// Names that no crate or no Python module can have.
const RESERVED: &str = "alloc and as assert async await become box break class const continue core crate def del do dyn elif \
                        else enum except extern false final finally fn for from gen global if impl import in is lambda let \
                        loop macro match mod move mut nestor_plugin none nonlocal not or override pass priv proc_macro pub \
                        raise ref return self static std struct super test trait true try type typeof unsafe unsized use \
                        virtual where while with yield";

/// Writes the project and returns its folder.
pub fn create(args: &NewArgs) -> Result<PathBuf> {
    check_name(&args.name)?;
    let files = files(args)?;
    let project = args.dir.join(&args.name);
    let shown = project.display();
    if project.symlink_metadata().is_ok() {
        return Err(input_error!("{shown} is there already; take another name or another --dir"));
    }
    for (path, text) in files {
        let path = project.join(path);
        let context = || format!("writing {}", path.display());
        fs::create_dir_all(path.parent().unwrap_or(&project)).with_context(context)?;
        fs::write(&path, text).with_context(context)?;
    }
    Ok(project)
}

fn check_name(name: &str) -> Result<()> {
    let letters = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if !letters || !name.starts_with(|first: char| first.is_ascii_lowercase()) || name.len() > LONGEST_NAME {
        return Err(input_error!(
            "`{name}` cannot be a plugin's name: take at most {LONGEST_NAME} lower case letters, digits and underscores, a letter first"
        ));
    }
    if RESERVED.split_whitespace().any(|word| word == name) {
        return Err(input_error!(
            "`{name}` cannot be a plugin's name: the word is reserved in Rust or Python; take another"
        ));
    }
    Ok(())
}

/// The project's files by their path in it.
fn files(args: &NewArgs) -> Result<BTreeMap<PathBuf, String>> {
    let name = args.name.as_str();
    if args.kind != Kind::Env && args.lang == Language::Python {
        let kind = if args.kind == Kind::Estimator { "an estimator" } else { "a loss" };
        return Err(input_error!(
            "{kind} cannot be written in Python: it scores every token in the trainer's process; take --lang rust or --lang c"
        ));
    }
    if args.sdk.is_some() && args.lang != Language::Rust {
        return Err(input_error!(
            "--sdk is for --lang rust: a project in another language needs no SDK but the header"
        ));
    }
    let sdk = args.sdk.as_deref().map_or(Ok(VENDORED.to_string()), checked_sdk)?;
    let (folder, source, build, library) = match args.lang {
        Language::Rust => {
            ("rust", "src/lib.rs".into(), "cargo build --release", format!("target/release/lib{name}.so"))
        }
        Language::C => ("c", format!("{name}.c"), "make", format!("./lib{name}.so")),
        Language::Python => ("python", format!("{name}.py"), "", "python".into()),
    };
    let kind = match args.kind {
        Kind::Env => "env",
        Kind::Estimator => "estimator",
        Kind::Loss => "loss",
    };
    let env = match args.lang {
        Language::Python => format!("{{plugin: python, config: {{class: \"{name}:Walk\"}}}}"),
        _ => format!("{{plugin: {library}}}"),
    };
    let fill = |text: &str| {
        let words = [
            ("@LIBRARY@", library.as_str()),
            ("@SOURCE@", &source),
            ("@BUILD@", build),
            ("@SDK@", &sdk),
            ("@ENV@", &env),
        ];
        words.iter().fold(text.replace(PLACEHOLDER, name), |text, (word, value)| text.replace(word, value))
    };
    let mut files = BTreeMap::new();
    // A later folder's file replaces an earlier one's. Only the folders of the language have folders of their own to copy.
    copy(folder, true, &mut files)?;
    copy(kind, false, &mut files)?;
    copy(&format!("{kind}/{folder}"), true, &mut files)?;
    let mut files: BTreeMap<PathBuf, String> = files
        .into_iter()
        .map(|(path, text)| {
            let path = path.replace(PLACEHOLDER, name);
            (PathBuf::from(if path == "gitignore" { ".gitignore" } else { &path }), fill(&text))
        })
        .collect();
    match args.lang {
        Language::Rust => {
            files.insert("Cargo.lock".into(), LOCK.to_string()); // cargo drops the crates that the plugin does not use
            if args.sdk.is_none() {
                files.extend(vendored_sdk()?);
            }
        }
        Language::C => {
            files.insert("nestor_plugin.h".into(), HEADER.to_string());
            files.insert("nestor_helpers.h".into(), HELPERS.to_string());
        }
        Language::Python => {}
    }
    Ok(files)
}

/// Adds the files of a template folder, by their path in it; nothing if there is no such folder.
fn copy(folder: &str, deep: bool, files: &mut BTreeMap<String, String>) -> Result<()> {
    let Some(root) = TEMPLATES.get_dir(folder) else { return Ok(()) };
    for (path, text) in texts(root, deep)? {
        let path = path.strip_prefix(folder).context("a file of the folder")?;
        files.insert(path.to_string_lossy().into_owned(), text);
    }
    Ok(())
}

/// The files of an embedded folder, by their path in the root of what was embedded.
fn texts(dir: &Dir<'_>, deep: bool) -> Result<Vec<(PathBuf, String)>> {
    let mut all = Vec::new();
    for file in dir.files() {
        let text = file.contents_utf8().with_context(|| format!("{} is not text", file.path().display()))?;
        all.push((file.path().to_path_buf(), text.to_string()));
    }
    for inner in dir.dirs().filter(|_| deep) {
        all.extend(texts(inner, deep)?);
    }
    Ok(all)
}

/// The SDK as a package of its own, without its tests.
fn vendored_sdk() -> Result<Vec<(PathBuf, String)>> {
    let root = Path::new(VENDORED);
    let (manifest, _) = SDK_MANIFEST.split_once(NOT_COPIED).context("the SDK's manifest has its usual order")?;
    let mut files =
        vec![(root.join("Cargo.toml"), manifest.to_string()), (root.join("nestor_plugin.h"), HEADER.to_string())];
    files.extend(texts(&SDK_SOURCES, true)?.into_iter().map(|(path, text)| (root.join("src").join(path), text)));
    Ok(files)
}

/// The absolute path of the user's SDK, fit for a TOML string.
fn checked_sdk(path: &Path) -> Result<String> {
    let shown = path.display();
    let manifest = fs::read_to_string(path.join("Cargo.toml"))
        .map_err(|e| input_error!("--sdk {shown}: {e}; name the folder plugins/sdk of a checkout"))?;
    if !manifest.contains("name = \"nestor-plugin\"") {
        return Err(input_error!("--sdk {shown} is not the SDK; name the folder plugins/sdk of a checkout"));
    }
    let whole = path.canonicalize().with_context(|| format!("finding {shown}"))?;
    let text = whole.to_str().filter(|text| !text.contains(['"', '\\']));
    text.map(str::to_string)
        .ok_or_else(|| input_error!("--sdk {shown}: cargo cannot read this path; use another folder"))
}

#[cfg(test)]
mod tests;
