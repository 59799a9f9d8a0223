//! The headers are strict C99 and C++, and the Rust structs have its layout, field by field.

#![allow(clippy::unwrap_used)] // a test may fail so

use std::path::Path;
use std::process::Command;

use nestor_plugin::ffi;

/// One struct: its C name, Rust size, and fields with their Rust offsets.
struct Layout {
    name: &'static str,
    size: usize,
    fields: Vec<(&'static str, usize)>,
}

/// Lists a struct's fields; the pattern makes a forgotten one a compile error.
macro_rules! layout {
    ($ty:ident, $name:literal, $($field:ident),*) => {{
        let _all_fields = |x: &ffi::$ty| { let ffi::$ty { $($field: _),* } = x; };
        Layout {
            name: $name,
            size: size_of::<ffi::$ty>(),
            fields: vec![$((stringify!($field), std::mem::offset_of!(ffi::$ty, $field))),*],
        }
    }};
}

fn layouts() -> Vec<Layout> {
    vec![
        layout!(Str, "nestor_str", data, len),
        layout!(Sink, "nestor_sink", context, put),
        layout!(Step, "nestor_step", reward, terminated, truncated, valid),
        layout!(
            Environment,
            "nestor_environment",
            open,
            prompt_template,
            tasks,
            spawn,
            reset,
            step,
            close,
            close_world
        ),
        layout!(Expert, "nestor_expert", next_action, response),
        layout!(
            Response,
            "nestor_response",
            text,
            message,
            broken_call,
            cut,
            prompt,
            prompt_tokens,
            tokens,
            logprobs,
            count
        ),
        layout!(Respond, "nestor_respond", respond),
        layout!(Estimator, "nestor_estimator", open, needs, score, close),
        layout!(
            Rows,
            "nestor_rows",
            rows,
            tokens,
            group,
            episode,
            step,
            sequence,
            span_start,
            span_length,
            reward,
            penalty,
            valid,
            terminated,
            truncated,
            anchor_data,
            anchor_offsets,
            duplicate_of,
            token_offsets,
            token_rewards,
            values,
            logprobs,
            ref_logprobs
        ),
        layout!(Parts, "nestor_parts", names, fill),
        layout!(State, "nestor_state", save, load),
        layout!(Column, "nestor_column", kind, count, data, offsets),
        layout!(Columns, "nestor_columns", names, score, fill),
        layout!(
            Tokens,
            "nestor_tokens",
            responses,
            tokens,
            token_offsets,
            logprobs,
            detached_logprobs,
            old_logprobs,
            behaviour,
            ref_logprobs,
            entropy,
            advantages,
            mini_batch_responses,
            mini_batch_tokens,
            most_response_tokens,
            iteration,
            iterations
        ),
        layout!(Loss, "nestor_loss", open, needs, compute, close),
        layout!(Component, "nestor_component", kind, id, doc, config_schema, functions, get_extension),
    ]
}

/// `nestor_plugin`, whose first fields are a struct of their own in Rust.
fn plugin_layout() -> Layout {
    let head = layout!(
        Head,
        "nestor_plugin",
        magic,
        abi_major,
        abi_minor,
        size_plugin,
        size_component,
        size_str,
        size_sink,
        size_step,
        size_environment,
        size_rows,
        size_estimator
    );
    let _all_fields = |x: &ffi::Plugin| {
        let ffi::Plugin { head: _, component_count: _, components: _ } = x;
    };
    let rest = [
        ("component_count", std::mem::offset_of!(ffi::Plugin, component_count)),
        ("components", std::mem::offset_of!(ffi::Plugin, components)),
    ];
    Layout { size: size_of::<ffi::Plugin>(), fields: head.fields.into_iter().chain(rest).collect(), ..head }
}

const CONSTANTS: [(&str, u64); 45] = [
    ("NESTOR_MOST_BYTES", ffi::MOST_BYTES as u64),
    ("NESTOR_MOST_TEXTS", ffi::MOST_TEXTS as u64),
    ("NESTOR_MAGIC", ffi::MAGIC),
    ("NESTOR_ABI_MAJOR", ffi::ABI_MAJOR as u64),
    ("NESTOR_ABI_MINOR", ffi::ABI_MINOR as u64),
    ("NESTOR_OK", ffi::OK as u64),
    ("NESTOR_FAILED", ffi::FAILED as u64),
    ("NESTOR_INPUT", ffi::INPUT as u64),
    ("NESTOR_PANIC", ffi::PANIC as u64),
    ("NESTOR_ERROR", ffi::ERROR as u64),
    ("NESTOR_OBSERVATION", ffi::OBSERVATION as u64),
    ("NESTOR_TASK", ffi::TASK as u64),
    ("NESTOR_ADMISSIBLE", ffi::ADMISSIBLE as u64),
    ("NESTOR_ANCHOR", ffi::ANCHOR as u64),
    ("NESTOR_ACTION", ffi::ACTION as u64),
    ("NESTOR_INFO", ffi::INFO as u64),
    ("NESTOR_TEMPLATE", ffi::TEMPLATE as u64),
    ("NESTOR_RESPONSE", ffi::RESPONSE as u64),
    ("NESTOR_PART", ffi::PART as u64),
    ("NESTOR_COLUMN", ffi::COLUMN as u64),
    ("NESTOR_STATE", ffi::STATE as u64),
    ("NESTOR_METRICS", ffi::METRICS as u64),
    ("NESTOR_LACKS", ffi::LACKS as u64),
    ("NESTOR_IMAGE", ffi::IMAGE as u64),
    ("NESTOR_MESSAGE", ffi::MESSAGE as u64),
    ("NESTOR_MOST_STATE", ffi::MOST_STATE as u64),
    ("NESTOR_MOST_IMAGES", ffi::MOST_IMAGES as u64),
    ("NESTOR_MOST_PIXELS", ffi::MOST_PIXELS),
    ("NESTOR_LEAST_MINOR", 0),
    ("NESTOR_BYTES", ffi::BYTES as u64),
    ("NESTOR_U8", ffi::U8 as u64),
    ("NESTOR_U32", ffi::U32 as u64),
    ("NESTOR_U64", ffi::U64 as u64),
    ("NESTOR_F32", ffi::F32 as u64),
    ("NESTOR_F64", ffi::F64 as u64),
    ("NESTOR_ENVIRONMENT", ffi::ENVIRONMENT as u64),
    ("NESTOR_ESTIMATOR", ffi::ESTIMATOR as u64),
    ("NESTOR_LOSS", ffi::LOSS as u64),
    ("NESTOR_NEEDS_ENTROPY", ffi::NEEDS_ENTROPY as u64),
    ("NESTOR_NEEDS_VALUES", ffi::NEEDS_VALUES as u64),
    ("NESTOR_NEEDS_ANCHORS", ffi::NEEDS_ANCHORS as u64),
    ("NESTOR_NEEDS_REFERENCE", ffi::NEEDS_REFERENCE as u64),
    ("sizeof(NESTOR_EXPERT) - 1", ffi::EXPERT.len() as u64),
    ("NESTOR_EXPERT[0]", b'n' as u64),
    ("NESTOR_EXPERT[sizeof(NESTOR_EXPERT) - 2]", b'1' as u64),
];

#[test]
fn c_and_rust_agree() {
    let mut lines = String::new();
    let mut expected = Vec::new();
    for layout in layouts().into_iter().chain([plugin_layout()]) {
        let name = layout.name;
        lines += &format!("    printf(\"{name} %llu\\n\", (unsigned long long)sizeof({name}));\n");
        expected.push(format!("{name} {}", layout.size));
        for (field, offset) in layout.fields {
            lines +=
                &format!("    printf(\"{name}.{field} %llu\\n\", (unsigned long long)offsetof({name}, {field}));\n");
            expected.push(format!("{name}.{field} {offset}"));
        }
    }
    for (name, value) in CONSTANTS {
        let shown = name.replace('%', "");
        lines += &format!("    printf(\"{shown} %llu\\n\", (unsigned long long)({name}));\n");
        expected.push(format!("{shown} {value}"));
    }
    let source =
        format!("#include \"nestor_plugin.h\"\n#include <stdio.h>\nint main(void) {{\n{lines}    return 0;\n}}\n");
    let dir = tempfile::tempdir().unwrap();
    let (c, program) = (dir.path().join("layout.c"), dir.path().join("layout"));
    std::fs::write(&c, source).unwrap();
    run(compiler().args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"]).arg(&program).arg(&c));
    let out = run(&mut Command::new(program));
    assert_eq!(out.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn the_c_examples_are_strict_c99() {
    let dir = tempfile::tempdir().unwrap();
    let strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fPIC", "-shared", "-o"];
    for name in ["counts.c", "mean.c", "picture.c"] {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/c").join(name);
        run(compiler().args(strict).arg(dir.path().join("example.so")).arg(example));
    }
}

#[test]
fn the_headers_are_cpp_too() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("nestor_helpers.h"); // it includes nestor_plugin.h
    let strict = ["-x", "c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"];
    run(Command::new("c++").args(strict).arg(header));
}

fn compiler() -> Command {
    let mut cc = Command::new("cc");
    cc.arg("-I").arg(env!("CARGO_MANIFEST_DIR"));
    cc
}

fn run(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}
