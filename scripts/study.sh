#!/usr/bin/env bash
# The study of docs/study.md: runs what is left of its sweeps, one after the other, and makes records, tables and curves.
# Usage:  scripts/study.sh [SWEEP...]     SWEEP: a file of recipes/study/sweeps without .yaml; all by default
#         scripts/study.sh --tables       only the tables and curves, from the records in docs/study
# The same command continues it after a kill. On two cores the main table on ALFWorld takes about an hour, everything three and a half.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} != --tables ]]; then
    [[ $# -gt 0 ]] || set -- alfworld alfworld_cause alfworld_rest webshop
    for sweep in "$@"; do
        target/release/nestor sweep "recipes/study/sweeps/$sweep.yaml"
        .venv/bin/python scripts/study/save.py "$sweep"
    done
fi
.venv/bin/python scripts/study/tables.py --write
