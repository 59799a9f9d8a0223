//! The layout of the workspace: no import cycle between the files of a folder, modules in the order that `lib.rs` states,
//! and crates of the trainer that use only those below them.

mod imports;

use std::path::{Path, PathBuf};

use imports::{cycles, root_imports, rust_files};

/// A crate of the workspace, as Cargo knows it.
struct Package {
    name: String,
    folder: PathBuf,
    /// Names of the packages that it, its tests or its build script use.
    dependencies: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// All crates of the workspace, from their `Cargo.toml`.
fn packages() -> Vec<Package> {
    let mut cargo = std::process::Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root());
    let output = cargo.output().expect("cargo");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo's description");
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_string();
    let list = |value: &serde_json::Value| value.as_array().expect("a list").clone();
    let package = |package: &serde_json::Value| Package {
        name: text(&package["name"]),
        folder: Path::new(&text(&package["manifest_path"])).parent().expect("a folder").into(),
        dependencies: list(&package["dependencies"]).iter().map(|dependency| text(&dependency["name"])).collect(),
    };
    list(&metadata["packages"]).iter().map(package).collect()
}

#[test]
fn files_of_a_folder_have_no_import_cycle() {
    let packages = packages();
    assert!(packages.len() > 30, "only {} crates were found", packages.len());
    let found: Vec<String> = packages
        .iter()
        .flat_map(|package| {
            cycles(&rust_files(&package.folder.join("src")))
                .into_iter()
                .map(|cycle| format!("{}, {cycle}", package.name))
        })
        .collect();
    assert!(found.is_empty(), "import cycles:\n{}", found.join("\n"));
}

/// Cycles that this project once had, by the lines that made them.
#[test]
fn an_import_cycle_is_named() {
    let expert =
        "use super::playing::Playing;\nuse super::pool::{Outcome, Pool, Start, Work};\nuse super::{Player, Turn};";
    let cases: [(&str, &[(&str, &str)]); 16] = [
        (
            "policy: deal -> update -> deal",
            &[
                ("policy/deal.rs", "use super::update::micro_batches;\nuse crate::dist::deal;"),
                ("policy/update.rs", "use super::aggregate::Shares;\nuse super::deal::dealt_micro_batches;"),
            ],
        ),
        (
            "policy: head -> softmax -> head",
            &[
                (
                    "policy/head.rs",
                    "use super::packed::Packed;\nuse super::softmax::Softmax;\nuse crate::model::Model;",
                ),
                (
                    "policy/softmax.rs",
                    "//! Softmax, as `super::update` needs it.\nuse tch::Tensor;\n\nuse super::head::TokenGrads;",
                ),
            ],
        ),
        (
            "policy: loss -> surrogate -> loss",
            &[
                ("policy/loss.rs", "use super::surrogate::surrogate;\nuse crate::recipe::{Loss, Update};"),
                ("policy/surrogate.rs", "use tch::{Kind, Tensor};\n\nuse super::loss::LossInputs;"),
            ],
        ),
        (
            "agent: expert -> pool -> expert",
            &[
                ("agent/expert.rs", expert),
                ("agent/pool.rs", "use std::thread;\n\nuse super::expert::{Demonstration, ExpertWork};"),
            ],
        ),
        (
            "sweep: file -> job -> file",
            &[("sweep/file.rs", "use super::job::Job;"), ("sweep/job.rs", "use super::file::Sweep;")],
        ),
        (
            "the root: compare -> words -> compare",
            &[
                ("compare.rs", "use crate::stats::{CALL, Estimate};\nuse crate::words;"),
                ("words.rs", "use crate::compare::Difference;\nuse crate::stats::CALL;"),
            ],
        ),
        (
            "the root: call -> image -> call",
            &[
                ("call.rs", "use crate::image::{ImageFault, Images};\nuse crate::input_error;"),
                ("image.rs", "use crate::call::{Fault, few};"),
            ],
        ),
        (
            "the root: isolate -> shared_env -> isolate",
            &[
                ("isolate/mod.rs", "mod world;\n\npub use process::{Process, Start};\npub use world::World;"),
                ("isolate/world.rs", "use super::process::{Process, Start};\nuse crate::shared_env::lacks;"),
                ("shared_env.rs", "use crate::isolate::{Process, World};"),
            ],
        ),
        (
            "isolate: guard -> keeper -> guard",
            &[
                ("isolate/guard.rs", "use super::keeper;\n\nfn leave_parent() { keeper::divide(lifeline) }"),
                ("isolate/keeper.rs", "use super::guard;\nuse crate::leave;"),
            ],
        ),
        (
            "the root: decode -> keyed -> decode",
            &[
                (
                    "lib.rs",
                    "pub use decode::{MOST_PIXELS, decode, read_image};\npub use keyed::{ImageKey, KeyedImage};",
                ),
                ("decode.rs", "use crate::KeyedImage;"),
                ("keyed.rs", "use sha2::{Digest, Sha256};\n\nuse crate::decode;"),
            ],
        ),
        (
            "the root: check -> hints -> check",
            &[
                ("check.rs", "use super::hints::{key_hint, value_hint};\nuse super::*;"),
                ("hints.rs", "use super::check::quoted;"),
            ],
        ),
        (
            "the root: tree -> variables -> tree",
            &[
                ("tree.rs", "use super::secret;\nuse super::variables::{self, Lookup};"),
                ("variables.rs", "use super::secret;\nuse super::tree::Location;"),
            ],
        ),
        (
            "the root: schema -> update -> schema",
            &[
                ("lib.rs", "mod schema;\nmod update;\n\npub use schema::*;\npub use update::*;"),
                ("schema.rs", "use super::{Critic, Update};\n\nfn one() -> f64 {"),
                ("update.rs", "use super::schema::{one, one_u32};\n\npub struct Update {"),
            ],
        ),
        (
            "the root: blackjack -> play -> blackjack",
            &[
                ("blackjack.rs", "use crate::card::{Card, Deck, list};\nuse crate::play::Outcome;"),
                (
                    "expert.rs",
                    "use crate::blackjack::{Blackjack, has_soft_ace, sum};\nuse crate::numberline::NumberLine;",
                ),
                ("numberline.rs", "use crate::card::Deck;\nuse crate::play::Outcome;"),
                ("picture.rs", "use crate::blackjack::Blackjack;\nuse crate::play::Game;"),
                ("points.rs", "use crate::formula;\nuse crate::play::Outcome;"),
                (
                    "play.rs",
                    "use crate::blackjack::{self, Blackjack};\nuse crate::expert::{self, Plan};\nuse crate::picture;",
                ),
            ],
        ),
        (
            "the root: session -> world -> session",
            &[
                ("world/expert.rs", "use super::relation::RELATIONS;\nuse crate::session::Turn;"),
                ("session.rs", "use crate::reward::last_answer;\nuse crate::world::expert;"),
            ],
        ),
        (
            "generate: shop -> tables -> shop",
            &[
                ("generate/shop.rs", "use super::tables::{Department, Kind};"),
                ("generate/tables/real.rs", "use super::super::shop::{Habits, Sentences, Shop};"),
            ],
        ),
    ];
    let folders = ["", "agent/", "dist/", "generate/", "generate/tables/", "isolate/", "policy/", "sweep/", "world/"];
    for (cycle, files) in cases {
        let file = |(name, text): &(&str, &str)| (name.to_string(), text.to_string());
        let mut crate_files: Vec<_> = folders.iter().map(|folder| (format!("{folder}mod.rs"), String::new())).collect();
        crate_files.extend(files.iter().map(file));
        assert_eq!(cycles(&crate_files), [cycle]);
        crate_files.pop();
        assert!(cycles(&crate_files).is_empty(), "one direction alone is no cycle");
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
    // Through globs and names that start with a re-exported type.
    let globs = [
        ("lib.rs", "mod a;\nmod b;\n\npub use a::*;\npub use b::Used as Renamed;"),
        ("a.rs", "pub struct Made;\n\nfn f() { crate::Renamed::new() }"),
        ("b.rs", "use super::*;\n\nfn g(_: Made) {}"),
    ];
    assert_eq!(cycles(&files(&globs)), ["the root: a -> b -> a"]);
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

/// The uses of modules before the user in the order that `lib.rs` states, and the number of uses that were looked at. None
/// where `lib.rs` states no order.
fn out_of_order(files: &[(String, String)]) -> Option<(Vec<String>, usize)> {
    let lib = &files.iter().find(|(file, _)| file == "lib.rs")?.1;
    let module = |line: &str| {
        let (_, name) =
            line.strip_suffix(';')?.split_once("mod ").filter(|(before, _)| !before.contains(['/', '{']))?;
        Some(name.to_string())
    };
    let lines: Vec<&str> = lib.lines().collect();
    let leaves = lines.iter().position(|line| *line == "// Leaves.")?;
    let order: Vec<String> = lines.iter().filter_map(|line| module(line)).collect();
    let first_leaf = lines[..leaves].iter().filter_map(|line| module(line)).count();
    let place = |name: &str| order.iter().position(|module| module == name);
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for (own, used) in root_imports(files) {
        let Some(at) = place(&own) else {
            wrong.push(format!("lib.rs does not place {own}"));
            continue;
        };
        for used in used {
            checked += 1;
            match place(&used) {
                Some(other) if other >= at || other >= first_leaf => {}
                Some(_) => wrong.push(format!("{own} uses {used}, which lib.rs places before it")),
                None => wrong.push(format!("lib.rs does not place {used}")),
            }
        }
    }
    Some((wrong, checked))
}

#[test]
fn modules_use_only_those_after_them() {
    let (mut wrong, mut checked, mut crates) = (Vec::new(), 0, Vec::new());
    for Package { name, folder, .. } in packages() {
        let Some((found, uses)) = out_of_order(&rust_files(&folder.join("src"))) else { continue };
        wrong.extend(found.iter().map(|one| format!("{name}: {one}")));
        (checked, crates) = (checked + uses, [crates, vec![name]].concat());
    }
    assert!(wrong.is_empty(), "modules out of order:\n{}", wrong.join("\n"));
    assert!(
        ["nestor-model", "nestor", "nestor-tools", "nestor-host"].iter().all(|name| crates.contains(&name.to_string())),
        "{crates:?}"
    );
    assert!(checked > 100, "only {checked} uses were found");
}

#[test]
fn a_module_out_of_order_is_named() {
    let problems = |lib: &str| {
        let files = [("lib.rs", lib), ("a.rs", "use crate::{b::B, Made};"), ("b.rs", ""), ("c.rs", "")];
        out_of_order(&files.map(|(file, text)| (file.to_string(), text.to_string()))).map(|(wrong, _)| wrong)
    };
    let uses = "\npub use c::Made;\n";
    assert_eq!(problems(&format!("mod a;\npub mod b;\npub(crate) mod c;\n\n// Leaves.\n{uses}")), Some(vec![]));
    assert_eq!(problems(&format!("mod a;\n// Leaves.\nmod c;\nmod b;\n{uses}")), Some(vec![]));
    let wrong = problems(&format!("mod b;\nmod c;\nmod a;\n\n// Leaves.\n{uses}")).unwrap();
    assert_eq!(wrong, ["a uses b, which lib.rs places before it", "a uses c, which lib.rs places before it"]);
    assert_eq!(problems("mod b;\nmod a;\n"), None, "no order is stated");
}

/// The packages of the folder `core`.
fn core() -> Vec<Package> {
    let core = root().join("core");
    packages().into_iter().filter(|package| package.folder.parent() == Some(&core)).collect()
}

#[test]
fn no_crate_of_core_depends_on_the_program() {
    let users = core().into_iter().filter(|package| package.dependencies.contains(&"nestor-cli".into()));
    let users: Vec<String> = users.map(|package| package.name).collect();
    assert!(users.is_empty(), "{users:?} depend on nestor-cli");
}

#[test]
fn crates_of_the_trainer_use_only_those_below_them() {
    let order = ["nestor-args", "nestor-model", "nestor", "nestor-tools"];
    let core = core();
    for (place, name) in order.iter().enumerate() {
        let package = core.iter().find(|package| package.name == *name).unwrap_or_else(|| panic!("no crate {name}"));
        let above = order[place + 1..].iter().find(|above| package.dependencies.contains(&above.to_string()));
        assert_eq!(above, None, "{name} depends on a crate above it");
    }
    let users: Vec<&Package> = core.iter().filter(|one| one.dependencies.contains(&"nestor-tools".into())).collect();
    assert!(users.is_empty(), "{} depends on nestor-tools", users[0].name);
}
