#!/usr/bin/env bash
# Lints a crate of the workspace with clippy, then compiles it: cargo calls this in place of rustc (.cargo/config.toml). So one
# build does both, every dependency is compiled once, and cargo repeats the warnings of crates that are built already. Where
# clippy is missing the crate is compiled without lints. Clippy's own binaries would be less optimised.
set -euo pipefail

if [[ " $* " == *" --emit="* ]] && clippy-driver --version >/dev/null 2>&1; then # not where cargo asks for the version
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
