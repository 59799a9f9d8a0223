#!/usr/bin/env bash
# The study of docs/study.md: runs what is left of its sweeps, one after the other, and stores what the tables need.
# Usage:  scripts/study.sh [SWEEP...]     SWEEP: a file of recipes/study/sweeps without .yaml; all by default
# The same command continues it after a kill. On two cores the main table on ALFWorld takes about an hour, everything about
# three. `scripts/study.sh --tables` only prints the tables of docs/study.md, from the stored metrics.
set -euo pipefail
cd "$(dirname "$0")/.."
nestor=target/release/nestor

tables() {
    for world in alfworld webshop; do
        echo "## $world"
        "$nestor" compare docs/study/$world.jsonl --by-folder --against grpo --markdown
    done
}

if [[ ${1:-} == --tables ]]; then
    tables
    exit
fi
[[ $# -gt 0 ]] || set -- alfworld webshop alfworld_rest
for sweep in "$@"; do
    "$nestor" sweep "recipes/study/sweeps/$sweep.yaml"
done
mkdir -p docs/study
for world in alfworld webshop; do
    if [[ -d runs/study/$world ]]; then
        "$nestor" compare "runs/study/$world" --by-folder --against grpo --save "docs/study/$world.jsonl" > "runs/study/$world.txt"
    fi
done
tables
