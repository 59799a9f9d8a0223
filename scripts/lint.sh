#!/usr/bin/env bash
# Lints a crate of the workspace with clippy, then compiles it: scripts/test.sh has cargo call this in place of rustc
# (RUSTC_WORKSPACE_WRAPPER). So one build does both, and every dependency is compiled once. Cargo repeats the warnings of
# crates that are built already. Clippy's own binaries would be less optimised.
set -euo pipefail

if [[ " $* " == *" --emit="* ]]; then # not where cargo asks for the version
    clippy-driver --version >/dev/null 2>&1 || { echo "lint: clippy is missing; rustup component add clippy" >&2; exit 1; }
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    words=() previous=
    for word in "$@"; do
        case $previous$word in
            --emit=*) word=--emit=metadata ;;
            --json=*) word=${word/,artifacts/} ;; # cargo would start on the dependents of the crate
            --out-dir?*) word=$scratch ;;
        esac
        words+=("$word")
        previous=
        [ "$word" != --out-dir ] || previous=$word
    done
    clippy-driver "${words[@]}"
    set -- "$@" --cap-lints allow # the warnings are out
fi
"$@"
