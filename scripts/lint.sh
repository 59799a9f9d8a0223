#!/usr/bin/env bash
# Lints a crate of the workspace with clippy, then compiles it. scripts/test.sh has cargo call this in place of rustc
# (RUSTC_WORKSPACE_WRAPPER), so that one cargo command does both and every dependency is compiled once. A warning is an
# error. What rustc writes is untouched: clippy's own binaries would be less optimised.
set -euo pipefail

if [[ " $* " == *" --emit="* ]]; then # not where cargo only asks for the version
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    words=()
    for word in "$@"; do
        case "${previous-}$word" in
            --emit=*) word=--emit=metadata ;;
            --json=*) word=${word/,artifacts/} ;; # cargo would start on the dependents of the crate
            --out-dir*) [ "$word" = --out-dir ] || word=$scratch ;;
        esac
        [ "$word" = --out-dir ] && previous=$word || previous=
        words+=("$word")
    done
    clippy-driver "${words[@]}" -D warnings
fi
"$@"
