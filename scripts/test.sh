#!/usr/bin/env bash
# Sets up what is missing and runs every check: format, lints, Rust tests, Python tests against references.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v cargo >/dev/null || export PATH="$HOME/.cargo/bin:$PATH"
unset LIBTORCH LIBTORCH_LIB LIBTORCH_INCLUDE LIBTORCH_USE_PYTORCH LIBTORCH_STATIC

report=""
stage() {
    local name=$1 begin=$SECONDS
    shift
    echo "== $name"
    "$@"
    report+=$(printf '%-8s %4d s' "$name" $((SECONDS - begin)))$'\n'
}

stage setup scripts/setup.sh --test
stage format cargo fmt --all --check
stage lints cargo clippy --quiet --locked --release --workspace --all-targets -- -D warnings
stage rust cargo test --quiet --locked --release --workspace
# Two at a time: most of them wait for one program that runs on one core.
stage python .venv/bin/python -m pytest -q -n 2 --dist loadfile tests/python
printf '== all passed\n%s' "$report"
