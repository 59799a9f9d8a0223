#!/usr/bin/env bash
# The studies of docs/study.md and docs/textworld.md: runs what is left of their sweeps, one after the other, and makes records, tables and
# curves.
# Usage:  scripts/study.sh [SWEEP...]     SWEEP: a file of recipes/study/sweeps without .yaml; all by default
#         scripts/study.sh textworld/smollm2   a sweep of recipes/textworld; its recipe names the model and the games to fetch first
#         scripts/study.sh --tables       only the tables and curves, from the records in docs/study
# The same command continues it after a kill. On two cores the main table on ALFWorld takes about an hour, everything three and a half.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${1:-} != --tables ]]; then
    [[ $# -gt 0 ]] || set -- alfworld alfworld_cause alfworld_rest webshop
    for sweep in "$@"; do
        folder=study
        [[ $sweep != */* ]] || folder=${sweep%/*}
        target/release/nestor sweep "recipes/$folder/sweeps/${sweep##*/}.yaml"
        .venv/bin/python scripts/study/save.py "$sweep"
    done
fi
.venv/bin/python scripts/study/tables.py --write
