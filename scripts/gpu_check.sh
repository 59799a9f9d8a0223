#!/usr/bin/env bash
# Checks Nestor on a machine with a CUDA GPU and torch 2.11, without compiler or cargo, within ten minutes.
#   scripts/gpu_check.sh --pack           where it was built: strips the program, its plugins and the driver of the check
#                                         into target/gpu_check; carry it with a checkout, compressed (tar -I "xz -1")
#   scripts/gpu_check.sh [--out DIR] [--deadline SECONDS] [--only NAME,NAME]
#                                         on the GPU machine; DIR gets checks.jsonl, a line per check, and table.md
#   scripts/gpu_check.sh --device cpu     a rehearsal on small shapes, without a GPU
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "gpu_check: $1" >&2; exit 1; }

if [ "${1-}" = --pack ]; then
    { [ -x target/release/nestor-torch ] && [ -x target/release/gradients ]; } || fail "build first: scripts/setup.sh --test"
    rm -rf target/gpu_check
    mkdir -p target/gpu_check
    # The plugins that the smoke recipes name.
    cp target/release/{nestor,nestor-torch,nestor-host,gradients} target/gpu_check/
    cp target/release/libnestor_{numberline,gigpo,grpo,ppo,reinforce_pp,rloo}.so target/gpu_check/
    strip target/gpu_check/*
    du -sh target/gpu_check
    exit
fi

folder=target/gpu_check
[ -x $folder/nestor ] || folder=target/release
[ -x $folder/nestor ] || fail "there is no $folder/nestor: run scripts/gpu_check.sh --pack where it was built, and carry target/gpu_check"
python=.venv/bin/python
[ -x $python ] || python=python3
lib=$($python -c 'import pathlib, torch
assert torch.__version__.startswith("2.11."), f"torch is {torch.__version__}, not 2.11"
print(pathlib.Path(torch.__file__).parent / "lib")') || fail "$python has no torch 2.11: pip install torch==2.11.0"
# The libraries that pip installs beside torch. Some builds of torch have none there.
beside=
for found in "$lib"/../../nvidia/*/lib; do
    [ ! -d "$found" ] || beside+=$found:
done
export LD_LIBRARY_PATH="$lib:$beside${LD_LIBRARY_PATH-}"
exec "$python" scripts/gpu/check.py "$folder" "$@"
