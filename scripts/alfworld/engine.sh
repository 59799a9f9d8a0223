#!/usr/bin/env bash
# Makes .venv-alfworld with the Python ALFWorld engine, which tests/slow/alfworld_differential.py and scripts/alfworld/bench.py run beside the
# plugin. Two of its parts are compiled (about 3 minutes on 2 cores). A second run changes nothing. Nothing else needs it.
#   scripts/alfworld/engine.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() { echo "alfworld_engine: $1" >&2; exit 1; }

[ $# -eq 0 ] || fail "unknown argument $1; usage: scripts/alfworld/engine.sh"
command -v python3 >/dev/null || fail "python3 is missing; install Python 3.10 or newer"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$(python3 --version) is too old; install Python 3.10 or newer"
command -v g++ >/dev/null || fail "g++ is missing; install it (Debian and Ubuntu: apt install build-essential)"
command -v make >/dev/null || fail "make is missing; install it (Debian and Ubuntu: apt install build-essential)"

venv=.venv-alfworld
stamp=$venv/alfworld.installed
cmp -s pyproject.toml "$stamp" && { echo "alfworld_engine: $venv is ready"; exit 0; }

if [ ! -x "$venv/bin/python" ]; then
    python3 -c 'import venv, ensurepip' 2>/dev/null ||
        fail "Python's venv module is missing; install it (Debian and Ubuntu: apt install python3-venv)"
    echo "alfworld_engine: making $venv"
    python3 -m venv "$venv"
fi

log=$venv/install.log
echo "alfworld_engine: installing the group alfworld of pyproject.toml (compiles for about 3 minutes), log $log"
{ "$venv/bin/python" -m pip install --disable-pip-version-check 'pip>=25.1' &&
    "$venv/bin/python" -m pip install --disable-pip-version-check --group alfworld; } >"$log" 2>&1 ||
    fail "the installation failed: $(grep -i error "$log" | head -n 1); see $log"
"$venv/bin/python" -c 'import fast_downward, textworld, alfworld; fast_downward.load_lib()' >>"$log" 2>&1 ||
    fail "the installed engine does not load: $(tail -n 1 "$log"); delete $venv and run scripts/alfworld/engine.sh again"
cp pyproject.toml "$stamp"
echo "alfworld_engine: $venv is ready"
