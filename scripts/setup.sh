#!/usr/bin/env bash
# Makes .venv with the pinned torch and builds the binary and the bundled plugins. A second run changes nothing.
#   scripts/setup.sh [--test]     --test also installs and builds what only the tests need
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "setup: $1" >&2; exit 1; }

with_tests=false
case "${1-}" in
    "") ;;
    --test) with_tests=true ;;
    *) fail "unknown argument $1; usage: scripts/setup.sh [--test]" ;;
esac

# A new rustup is not on PATH yet.
command -v cargo >/dev/null || export PATH="$HOME/.cargo/bin:$PATH"
command -v cargo >/dev/null || fail "cargo is missing; install Rust 1.88 or newer from https://rustup.rs"
"${CXX:-c++}" --version >/dev/null 2>&1 || fail "a C++ compiler is missing; install g++ (or set CXX)"
command -v python3 >/dev/null || fail "python3 is missing; install Python 3.10 or newer"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$(python3 --version) is too old; install Python 3.10 or newer"

if [ ! -x .venv/bin/python ]; then
    python3 -c 'import venv, ensurepip' 2>/dev/null ||
        fail "Python's venv module is missing; install it (Debian and Ubuntu: apt install python3-venv)"
    echo "setup: making .venv"
    python3 -m venv .venv
fi

# A libtorch named by the environment must not take precedence.
unset LIBTORCH LIBTORCH_LIB LIBTORCH_INCLUDE LIBTORCH_USE_PYTORCH LIBTORCH_STATIC
build=(cargo build --quiet --locked --release --workspace)
if $with_tests; then build+=(--all-targets); else build+=(--exclude nestor-drivers); fi
# While pip downloads and unpacks torch, cargo compiles all that needs no libtorch. It stops at the bindings, whose errors
# mean nothing here: the build at the end reports what is left.
if [ ! -e .venv/torch/lib/libtorch.so ]; then
    "${build[@]}" --keep-going >/dev/null 2>&1 &
    early=$!
    trap 'kill "$early" 2>/dev/null || true' EXIT
fi

# Installs a dependency group of pyproject.toml unless it was installed from the same pyproject.toml before.
install() {
    local group=$1 note=$2 stamp=".venv/$1.installed"
    shift 2
    cmp -s pyproject.toml "$stamp" && return
    echo "setup: installing the group $group of pyproject.toml$note"
    # pip reads dependency groups from version 25.1 on.
    [ -e .venv/pip.installed ] || .venv/bin/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
    touch .venv/pip.installed
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" --group "$group"
    cp pyproject.toml "$stamp"
}
install run " (torch is large: some minutes)"
install texts "" --no-deps
if $with_tests; then
    install test ""
    install openenv "" --no-deps
    # A real language model. Without it, its tests are left out.
    .venv/bin/python scripts/models/get.py smollm2-135m >/dev/null || echo "setup: no real model, so tests/python/test_real.py is left out"
fi

# The browser in which `nestor view` is tested.
if $with_tests && [ -z "${CHROMIUM-}" ] && ! command -v chromium >/dev/null; then
    { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; } ||
        fail "chromium is missing; install it (Debian: apt install chromium), or name one in CHROMIUM"
    echo "setup: installing chromium"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends chromium fonts-liberation >/dev/null
fi

# Links without a Python version in their path: .cargo/config.toml finds torch there, and recipes find ALFWorld's texts.
link() {
    local name=$1 holds=$2 site
    [ ! -e ".venv/$name/$holds" ] || return 0
    site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    ln -sfn "${site#"$PWD/.venv/"}/$name" ".venv/$name"
    [ -e ".venv/$name/$holds" ] || fail ".venv holds no $name; delete .venv and run scripts/setup.sh again"
}
link torch lib/libtorch.so
link alfworld data/alfred.twl2

if [ -n "${early-}" ]; then
    wait "$early" || true
    trap - EXIT
fi
[ -x target/release/nestor-torch ] || echo "setup: building (libtorch's bindings are large: some minutes on 2 cores)"
"${build[@]}"
