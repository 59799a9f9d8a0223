#!/usr/bin/env bash
# Runs every check after installing what is missing: format, words, lints, Rust tests, Python tests against references.
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

# Builds all that the tests need: set-up has done so, and its warnings are errors here.
build() {
    local log
    log=$(mktemp)
    cargo build --quiet --locked --release --workspace --all-targets 2>&1 | tee "$log"
    if grep -q '^warning' "$log"; then return 1; fi
}

format() {
    cargo fmt --all --check
    # Packages of their own, which the workspace does not know.
    git ls-files -z 'examples/*.rs' 'core/scaffold/templates/*.rs' | xargs -0 rustfmt --check --edition 2024
}

words() {
    local own
    # Spelling; then the phrases of tests/words.txt, each with a plainer one.
    git ls-files -z | xargs -0 .venv/bin/codespell
    own=$(sed 's/->.*//; s/[].[*^$+?(){}|\\]/\\&/g' tests/words.txt | paste -sd '|')
    git ls-files -z | xargs -0 .venv/bin/codespell --dictionary tests/words.txt --regex "(?<!\w)(?:$own)(?!\w)"
    .venv/bin/md-dead-link-check # between our files
}

stage setup scripts/setup.sh --test
stage format format
stage words words
stage build build
stage lint scripts/lint.sh
stage rust cargo test --quiet --locked --release --workspace
# More at a time than there are cores: most tests wait, for a start, a heartbeat or a server.
workers=$((2 * $(nproc) < 8 ? 2 * $(nproc) : 8))
stage python .venv/bin/python -m pytest -q -n $workers --dist loadfile --no-loadscope-reorder --durations=10 tests/python
printf '== all passed\n%s' "$report"
