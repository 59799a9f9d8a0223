//! The order of modules that `lib.rs` states, and the absence of import cycles between the files of a folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A module path, such as `["policy", "losses"]`.
type Module = Vec<String>;

/// The Rust files below a folder as pairs of path (relative to `root`) and text.
fn rust_files(root: &Path, dir: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(dir).expect("source folder").map(|e| e.expect("entry").path());
    let files = |path: std::path::PathBuf| {
        if path.is_dir() {
            return rust_files(root, &path);
        }
        let name = path.strip_prefix(root).expect("inside").to_string_lossy().into_owned();
        if !name.ends_with(".rs") {
            return Vec::new();
        }
        vec![(name, std::fs::read_to_string(&path).expect("source"))]
    };
    entries.flat_map(files).collect()
}

fn sources() -> Vec<(String, String)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    rust_files(&source, &source)
}

/// The module of a file: `policy/losses.rs` and `policy/losses/mod.rs` are `policy::losses`, `lib.rs` is the root.
fn module_of(file: &str) -> Module {
    let mut module: Module = file.trim_end_matches(".rs").split('/').map(str::to_string).collect();
    if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        module.pop();
    }
    module
}

/// Code without comments and without the unit tests at its end.
fn code(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let tests = lines.windows(2).position(|pair| {
        pair[0].trim() == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].trim_end().ends_with('{')
    });
    lines[..tests.unwrap_or(lines.len())].join("\n")
}

/// Splits a path or a tree of paths, `a::{b, c::{d, e as f}}`, into its leaves. Returns the text after it.
fn leaves<'a>(mut text: &'a str, prefix: &[String], found: &mut Vec<Module>) -> &'a str {
    let mut path = prefix.to_vec();
    loop {
        text = text.trim_start();
        if let Some(mut rest) = text.strip_prefix('{') {
            loop {
                rest = leaves(rest, &path, found).trim_start();
                match rest.strip_prefix(',') {
                    Some(more) => rest = more,
                    None => return rest.strip_prefix('}').unwrap_or(rest),
                }
            }
        }
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        if end == 0 {
            break;
        }
        path.push(text[..end].to_string());
        text = &text[end..];
        match text.strip_prefix("::") {
            Some(rest) => text = rest,
            None => break,
        }
    }
    if let Some(alias) = text.trim_start().strip_prefix("as ") {
        text = alias.trim_start().trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
    }
    if path.len() > prefix.len() {
        found.push(path);
    }
    text
}

/// Every path in a module's code that starts at `crate`, `super` or `self`, counted from the root of the crate.
fn paths(module: &Module, code: &str) -> Vec<Module> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                leaves(&code[at..], &[], &mut found);
            }
        }
    }
    let absolute = |path: Module| {
        let mut base = module.clone();
        let supers = path.iter().take_while(|name| *name == "super").count();
        base.truncate(base.len().saturating_sub(supers));
        match path[0].as_str() {
            "crate" => path[1..].to_vec(),
            "self" => [base, path[1..].to_vec()].concat(),
            _ => [base, path[supers..].to_vec()].concat(),
        }
    };
    found.into_iter().map(absolute).collect()
}

/// The items that a parent module imports or re-exports from its children: their names there, and where they are
/// defined.
fn re_exports(module: &Module, code: &str) -> BTreeMap<Module, Module> {
    let mut names = BTreeMap::new();
    for statement in code.split(';') {
        let words = statement.trim_start();
        let Some(at) = words.find("use ").filter(|at| words[..*at].trim().starts_with("pub") || *at == 0) else {
            continue;
        };
        let mut found = Vec::new();
        leaves(words[at + 4..].trim_start().trim_start_matches("self::"), &[], &mut found);
        for path in found.iter().filter(|path| path.len() > 1 && !["crate", "super"].contains(&path[0].as_str())) {
            let name = [module.clone(), path[path.len() - 1..].to_vec()].concat();
            names.insert(name, [module.clone(), path.clone()].concat());
        }
    }
    names
}

/// A cycle of imports between children of one module, as `a -> b -> a`.
fn cycle_of(edges: &BTreeMap<String, BTreeSet<String>>) -> Option<String> {
    fn visit(edges: &BTreeMap<String, BTreeSet<String>>, path: &mut Vec<String>) -> Option<String> {
        let here = path.last()?.clone();
        for next in edges.get(&here).into_iter().flatten() {
            if let Some(first) = path.iter().position(|name| name == next) {
                return Some([&path[first..], std::slice::from_ref(next)].concat().join(" -> "));
            }
            path.push(next.clone());
            let found = visit(edges, path);
            path.pop();
            if found.is_some() {
                return found;
            }
        }
        None
    }
    edges.keys().find_map(|start| visit(edges, &mut vec![start.clone()]))
}

/// For each folder, the first import cycle between its files and sub-folders. Uses of items that the folder's `mod.rs`
/// defines itself are no imports between siblings; uses of what it re-exports are imports of the file that defines it.
fn cycles(files: &[(String, String)]) -> Vec<String> {
    let modules: Vec<(Module, String)> = files.iter().map(|(file, text)| (module_of(file), code(text))).collect();
    let known: BTreeSet<&Module> = modules.iter().map(|(module, _)| module).collect();
    let mut aliases = BTreeMap::new();
    for (module, code) in modules.iter() {
        aliases.extend(
            re_exports(module, code).into_iter().filter(|(_, path)| known.contains(&path[..=module.len()].to_vec())),
        );
    }
    // By folder: which of its children uses which.
    let mut folders: BTreeMap<Module, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (module, code) in &modules {
        for path in paths(module, code) {
            let path = aliases.get(&path).unwrap_or(&path);
            let shared = module.iter().zip(path).take_while(|(a, b)| a == b).count();
            let (Some(own), Some(used)) = (module.get(shared), path.get(shared)) else { continue };
            if known.contains(&path[..=shared].to_vec()) {
                let edges = folders.entry(module[..shared].to_vec()).or_default();
                edges.entry(own.clone()).or_default().insert(used.clone());
            }
        }
    }
    let name = |folder: &Module| if folder.is_empty() { "the root".into() } else { folder.join("::") };
    folders.iter().filter_map(|(folder, edges)| Some(format!("{}: {}", name(folder), cycle_of(edges)?))).collect()
}

#[test]
fn files_of_a_folder_have_no_import_cycle() {
    let found = cycles(&sources());
    assert!(found.is_empty(), "import cycles:\n{}", found.join("\n"));
}

/// Four cycles that this project once had, by the lines that made them.
#[test]
fn an_import_cycle_is_named() {
    let deal = "use super::update::micro_batches;\nuse crate::dist::deal;";
    let update = "use super::aggregate::Shares;\nuse super::deal::dealt_micro_batches;";
    let head = "use super::packed::Packed;\nuse super::softmax::Softmax;\nuse crate::model::Model;";
    let softmax = "//! Softmax, as `super::update` needs it.\nuse tch::Tensor;\n\nuse super::head::TokenGrads;";
    let loss = "use super::surrogate::surrogate;\nuse crate::recipe::{Loss, Update};";
    let surrogate = "use tch::{Kind, Tensor};\n\nuse super::loss::LossInputs;";
    let expert =
        "use super::playing::Playing;\nuse super::pool::{Outcome, Pool, Start, Work};\nuse super::{Player, Turn};";
    let pool = "use std::thread;\n\nuse super::expert::{Demonstration, ExpertWork};";
    let cases = [
        ("policy", ("deal", deal), ("update", update)),
        ("policy", ("head", head), ("softmax", softmax)),
        ("policy", ("loss", loss), ("surrogate", surrogate)),
        ("agent", ("expert", expert), ("pool", pool)),
    ];
    for (folder, a, b) in cases {
        let file = |(name, text): (&str, &str)| (format!("{folder}/{name}.rs"), text.to_string());
        let others = ["lib.rs", &format!("{folder}/mod.rs"), "policy/packed.rs", "dist/mod.rs"];
        let mut files: Vec<_> = others.iter().map(|name| (name.to_string(), String::new())).collect();
        files.extend([file(a), file(b)]);
        assert_eq!(cycles(&files), [format!("{folder}: {} -> {} -> {}", a.0, b.0, a.0)]);
        files.pop();
        assert!(cycles(&files).is_empty(), "one direction alone is no cycle");
    }
}

#[test]
fn a_cycle_is_found_whatever_its_form() {
    let files = |pairs: &[(&str, &str)]| pairs.iter().map(|(f, t)| (f.to_string(), t.to_string())).collect::<Vec<_>>();
    // Through re-exports of the parent, a sub-folder, and three files.
    let re_exported = [
        ("m/mod.rs", "mod a;\nmod b;\n\npub use a::Made;\npub(crate) use b::{self, Used};\npub struct Own;"),
        ("m/a.rs", "use super::Used;"),
        ("m/b.rs", "use super::{Made, Own};"),
    ];
    assert_eq!(cycles(&files(&re_exported)), ["m: a -> b -> a"]);
    let folder =
        [("m/mod.rs", ""), ("m/a.rs", "use super::b::c;"), ("m/b/mod.rs", ""), ("m/b/c.rs", "use super::super::a;")];
    assert_eq!(cycles(&files(&folder)), ["m: a -> b -> a"]);
    let three =
        [("m/a.rs", "use super::{x, b::B};"), ("m/b.rs", "use crate::m::{c};"), ("m/c.rs", "use super::a::A as B;")];
    assert_eq!(cycles(&files(&three)), ["m: a -> b -> c -> a"]);
    // Items of the parent, unit tests and comments are no imports between siblings.
    let none = [
        ("m/mod.rs", "mod a;\nuse a::A;\npub struct Own;\nfn f() { a::g() }"),
        ("m/a.rs", "use super::Own;\nuse super::b::B;"),
        ("m/b.rs", "use super::Own; // not super::a\n\n#[cfg(test)]\nmod tests {\n    use super::super::a::A;\n}"),
    ];
    assert!(cycles(&files(&none)).is_empty());
    let root = [("lib.rs", "pub mod x;\npub mod y;"), ("x.rs", "use crate::y::Y;"), ("y/mod.rs", "use crate::x::X;")];
    assert_eq!(cycles(&files(&root)), ["the root: x -> y -> x"]);
}

#[test]
fn modules_use_only_those_after_them() {
    let files = sources();
    let lib = &files.iter().find(|(file, _)| file == "lib.rs").expect("lib.rs").1;
    let order: Vec<&str> = lib.lines().filter_map(|l| l.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    let place = |name: &str| order.iter().position(|m| *m == name);
    let first_leaf = place("data").expect("the leaves begin with data");
    let re_exported: Vec<&str> = lib
        .lines()
        .filter_map(|l| l.strip_prefix("pub use ")?.strip_suffix(';')?.split([' ', ':']).next_back())
        .collect();
    let mut checked = 0;
    for (file, text) in &files {
        let module = module_of(file);
        let Some(own) = module.first() else { continue };
        let own = place(own).unwrap_or_else(|| panic!("{file}: lib.rs does not place module {own}"));
        for part in text.split("crate::").skip(1) {
            let name: String = part.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            match place(&name) {
                Some(used) => {
                    assert!(used >= own || used >= first_leaf, "{file} uses {name}, which lib.rs places before it");
                    checked += 1;
                }
                None => {
                    assert!(re_exported.contains(&&*name) || name.is_empty(), "{file}: lib.rs does not place {name}")
                }
            }
        }
    }
    assert!(checked > 50, "only {checked} uses were found");
}
