#!/usr/bin/env bash
# Measures Nestor beside its peers, one row of the README's table at a time, or all. Makes .venv-bench (TRL) first.
#   scripts/bench.sh ROW... | all [--repeat R] [--threads N] [--write README.md] [--small]
#   rows: generate-0.5b generate-27m update-0.5b update-ragged-27m rollout-27m iteration-27m logprob-diff deterministic
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "bench: $1" >&2; exit 1; }

[ $# -gt 0 ] || fail "name a row, or all; usage: scripts/bench.sh ROW... | all [--repeat R] [--write README.md]"
if ! [ -x target/release/nestor ] || ! .venv/bin/python -c 'import transformers' 2>/dev/null; then
    scripts/setup.sh --test
fi

# It sees the packages of .venv too, so that both sides have the same torch.
venv=.venv-bench
stamp=$venv/requirements-bench.txt.installed
if ! cmp -s requirements-bench.txt "$stamp"; then
    echo "bench: installing requirements-bench.txt in $venv" >&2
    [ -x "$venv/bin/python" ] || .venv/bin/python -m venv "$venv"
    site='import sysconfig; print(sysconfig.get_path("purelib"))'
    .venv/bin/python -c "$site" >"$("$venv/bin/python" -c "$site")/nestor.pth"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements-bench.txt
    cp requirements-bench.txt "$stamp"
fi
exec "$venv/bin/python" scripts/bench_peers.py "$@"
