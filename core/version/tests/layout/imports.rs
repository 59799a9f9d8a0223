//! Import cycles between the files of a folder, found in their text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A module path, such as `["policy", "loss"]`.
type Module = Vec<String>;

/// A name that `use` brings in, and its path as written. A glob has the name `*`.
type Leaf = (String, Module);

/// The Rust files of a crate's source folder, as pairs of path and text. None where there is no such folder.
pub fn rust_files(source: &Path) -> Vec<(String, String)> {
    fn walk(root: &Path, dir: &Path, found: &mut Vec<(String, String)>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten() {
            let path = entry.expect("entry").path();
            let name = path.strip_prefix(root).expect("inside").to_string_lossy().into_owned();
            if path.is_dir() {
                walk(root, &path, found);
            } else if name.ends_with(".rs") {
                found.push((name, std::fs::read_to_string(&path).expect("source")));
            }
        }
    }
    let mut found = Vec::new();
    walk(source, source, &mut found);
    found.sort();
    found
}

/// The module of a file: `policy/loss.rs` and `policy/loss/mod.rs` are `policy::loss`, `lib.rs` is the root.
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

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Splits a path or a tree of paths, `a::{b, c::{d, e as f}}`, into its leaves. Returns the text after it.
fn leaves<'a>(mut text: &'a str, prefix: &[String], found: &mut Vec<Leaf>) -> &'a str {
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
        let end = text.find(|c: char| !is_word(c)).unwrap_or(text.len()).max(usize::from(text.starts_with('*')));
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
    if path.len() == prefix.len() {
        return text;
    }
    let mut name = path[path.len() - 1].clone();
    if let Some(alias) = text.trim_start().strip_prefix("as ") {
        text = alias.trim_start().trim_start_matches(is_word);
        name = alias.trim_start().chars().take_while(|c| is_word(*c)).collect();
    }
    found.push((name, path));
    text
}

/// The leaves of all `use` statements.
fn uses(code: &str) -> Vec<Leaf> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        if before.is_empty() || before.starts_with("pub") {
            leaves(&code[at + 4..], &[], &mut found);
        }
    }
    found
}

/// Every path in a module's code that begins with one of `starts`, counted from the root of the crate.
fn paths(module: &Module, code: &str, starts: &[&str]) -> Vec<Module> {
    let mut found = Vec::new();
    for start in starts {
        for (at, _) in code.match_indices(*start) {
            let before = code[..at].chars().next_back();
            if !before.is_some_and(|c| is_word(c) || c == ':') {
                leaves(&code[at..], &[], &mut found);
            }
        }
    }
    let absolute = |(_, path): Leaf| {
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

/// The names of a file's own public items.
fn public_items(code: &str) -> impl Iterator<Item = String> {
    let keywords = ["const", "enum", "fn", "mod", "static", "struct", "trait", "type", "union", "unsafe"];
    code.lines().filter_map(move |line| {
        let words = line.strip_prefix("pub")?.split(|c: char| !is_word(c)).filter(|word| !word.is_empty());
        let mut item = words.skip_while(|word| !keywords.contains(word)).skip_while(|word| keywords.contains(word));
        item.next().map(str::to_string)
    })
}

/// The items that a parent module imports or re-exports from its children: their names there, and where they are
/// defined.
fn re_exports(module: &Module, code: &str, modules: &BTreeMap<Module, String>) -> BTreeMap<Module, Module> {
    let inside = |names: &[String]| [module.as_slice(), names].concat();
    let mut found = BTreeMap::new();
    for (name, mut path) in uses(code) {
        path = path[usize::from(path[0] == "self")..].to_vec();
        if path.len() < 2 || !modules.contains_key(&inside(&path[..1])) {
            continue;
        }
        if name != "*" {
            found.insert(inside(&[name]), inside(&path));
            continue;
        }
        path.pop();
        for item in modules.get(&inside(&path)).into_iter().flat_map(|code| public_items(code)) {
            let item = [item];
            found.insert(inside(&item), inside(&[path.as_slice(), &item].concat()));
        }
    }
    found
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

/// By folder, the root being the empty path: which of its files and sub-folders imports which.
type Imports = BTreeMap<Module, BTreeMap<String, BTreeSet<String>>>;

/// The imports between the children of each folder. Uses of items that the folder's `mod.rs` defines itself are no imports
/// between siblings; uses of what it re-exports are imports of the file that defines it. Only paths that begin with one
/// of `starts` count.
fn imports_of(files: &[(String, String)], code: fn(&str) -> String, starts: &[&str]) -> Imports {
    let mut modules: BTreeMap<Module, String> = BTreeMap::new();
    for (file, text) in files {
        // A crate may have both `lib.rs` and `main.rs`.
        modules.entry(module_of(file)).or_default().push_str(&(code(text) + "\n"));
    }
    let aliases: BTreeMap<Module, Module> =
        modules.iter().flat_map(|(module, code)| re_exports(module, code, &modules)).collect();
    let mut folders = Imports::new();
    for (module, code) in &modules {
        for path in paths(module, code, starts).into_iter().flat_map(|path| definitions(path, code, &aliases)) {
            let shared = module.iter().zip(&path).take_while(|(a, b)| a == b).count();
            let (Some(own), Some(used)) = (module.get(shared), path.get(shared)) else { continue };
            if modules.contains_key(&path[..=shared]) {
                let edges = folders.entry(module[..shared].to_vec()).or_default();
                edges.entry(own.clone()).or_default().insert(used.clone());
            }
        }
    }
    folders
}

/// The imports of a crate, without those of comments and of the unit tests at the end of a file.
fn imports(files: &[(String, String)]) -> Imports {
    imports_of(files, code, &["crate::", "super::", "self::"])
}

/// The modules of `lib.rs` that each of them uses, those of comments and unit tests too.
pub fn root_imports(files: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    imports_of(files, str::to_string, &["crate::"]).remove(&Module::new()).unwrap_or_default()
}

/// For each folder, the first import cycle between its files and sub-folders.
pub fn cycles(files: &[(String, String)]) -> Vec<String> {
    let name = |folder: &Module| if folder.is_empty() { "the root".into() } else { folder.join("::") };
    let cycle = |(folder, edges): (&Module, _)| Some(format!("{}: {}", name(folder), cycle_of(edges)?));
    imports(files).iter().filter_map(cycle).collect()
}

/// A path in this code with re-exported names replaced by the places that define them. A glob is each re-exported name
/// that the code has.
fn definitions(path: Module, code: &str, aliases: &BTreeMap<Module, Module>) -> Vec<Module> {
    let Some((last, folder)) = path.split_last().filter(|(last, _)| *last == "*") else {
        let mut path = path;
        // A file may define an item of its own name: each name is replaced once at most.
        for length in 1..=path.len() {
            if let Some(place) = aliases.get(&path[..length]) {
                path.splice(..length, place.iter().cloned());
            }
        }
        return vec![path];
    };
    let words: BTreeSet<&str> = code.split(|c: char| !is_word(c)).collect();
    let named = |name: &&Module| {
        name.split_last().is_some_and(|(item, parent)| parent == folder && words.contains(item.as_str()))
    };
    let mut found: Vec<Module> = aliases.keys().filter(named).map(|name| aliases[name].clone()).collect();
    found.push([folder, std::slice::from_ref(last)].concat());
    found
}
