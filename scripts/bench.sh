#!/usr/bin/env bash
# Measures Nestor beside its peers, one row of docs/benchmarks.md at a time, or all. Makes .venv-bench (TRL) first.
#   scripts/bench.sh ROW... | all [--repeat R] [--threads N] [--write docs/benchmarks.md] [--small]
#   rows: generate-0.5b generate-27m update-0.5b update-ragged-27m rollout-27m iteration-27m logprob-diff deterministic
#     deterministic-price tree-textworld tree-alfworld-no-history tree-alfworld tree-none
#     and those of real models: scripts/bench/bench_peers.py names them
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "bench: $1" >&2; exit 1; }

[ $# -gt 0 ] || fail "name a row, or all; usage: scripts/bench.sh ROW... | all [--repeat R] [--write docs/benchmarks.md]"
if ! [ -x target/release/nestor ] || ! .venv/bin/python -c 'import transformers' 2>/dev/null; then
    scripts/setup.sh --test
fi

# Packages of .venv are visible in it, so that both sides have the same torch.
venv=.venv-bench
stamp=$venv/bench.installed
if ! cmp -s pyproject.toml "$stamp"; then
    echo "bench: installing the group bench of pyproject.toml in $venv" >&2
    [ -x "$venv/bin/python" ] || .venv/bin/python -m venv "$venv"
    site='import sysconfig; print(sysconfig.get_path("purelib"))'
    .venv/bin/python -c "$site" >"$("$venv/bin/python" -c "$site")/nestor.pth"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --group bench
    cp pyproject.toml "$stamp"
fi
exec "$venv/bin/python" scripts/bench/bench_peers.py "$@"
