#!/usr/bin/env bash
# Makes .venv/textworld with TextWorld 1.7.0 for examples/environments/textworld: about 150 MB, under a minute. pip compiles one of
# the packages, jericho. A second run changes nothing. Nestor's own packages stay as they are.
#   scripts/textworld/setup.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() { echo "textworld_setup: $1" >&2; exit 1; }

[ $# -eq 0 ] || fail "unknown argument $1; usage: scripts/textworld/setup.sh"
command -v python3 >/dev/null || fail "python3 is missing; install Python 3.11 or newer"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$(python3 --version) is too old; install Python 3.11 or newer"
command -v gcc >/dev/null && command -v make >/dev/null ||
    fail "gcc or make is missing; install them (Debian and Ubuntu: apt install build-essential)"

venv=.venv/textworld
list=scripts/textworld/requirements.txt
cmp -s "$list" "$venv/textworld.installed" && { echo "textworld_setup: $venv is ready"; exit 0; }

if [ ! -x "$venv/bin/python" ]; then
    python3 -c 'import venv, ensurepip' 2>/dev/null ||
        fail "Python's venv module is missing; install it (Debian and Ubuntu: apt install python3-venv)"
    echo "textworld_setup: making $venv"
    python3 -m venv "$venv"
fi

log=$venv/install.log
echo "textworld_setup: installing $list, log $log"
"$venv/bin/python" -m pip install --disable-pip-version-check --no-deps -r "$list" >"$log" 2>&1 ||
    fail "the installation failed: $(grep -i error "$log" | head -n 1); see $log"
"$venv/bin/python" -c 'import textworld.gym' >>"$log" 2>&1 ||
    fail "the installed package does not load: $(tail -n 1 "$log"); delete $venv and run scripts/textworld/setup.sh again"
cp "$list" "$venv/textworld.installed"
echo "textworld_setup: $venv is ready"
