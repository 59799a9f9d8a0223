#!/usr/bin/env bash
# Builds the emulator of the CUDA kernels (core/torch/cuda/emulator), unless it is built already, and prints the path of the
# library. NESTOR_EMULATED_KERNELS=PATH then runs the kernels on a CPU, with NESTOR_OPS=generic.
#
#   scripts/emulator.sh [--kernels FILE]
#
# FILE defines kernels that take the place of all, for a test. NESTOR_EMULATOR_SANITIZE=1 builds with AddressSanitizer and
# UndefinedBehaviorSanitizer; a program that opens such a library must have libasan preloaded.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
source=$root/core/torch/cuda
flags=(-std=c++17 -O2 -g1 -fPIC -shared -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off -Wall -Wextra
    -Wno-unknown-pragmas -DNESTOR_EMULATOR "-I$source")
own=/dev/null
if [ "${1:-}" = --kernels ]; then
    own=$(realpath "$2")
    flags+=("-DNESTOR_TEST_KERNELS=\"$own\"")
fi
if [ "${NESTOR_EMULATOR_SANITIZE:-}" = 1 ]; then
    flags+=(-fsanitize=address,undefined -fno-sanitize-recover=all)
fi
key=$({ echo "${flags[@]}"; ${CXX:-g++} --version; cat "$source"/*.cu "$source"/*.cuh "$source"/*.h "$source"/emulator/* "$own"; } |
    sha256sum | cut -c1-16)
folder=${CARGO_TARGET_DIR:-$root/target}/emulator
library=$folder/$key/libnestor_emulator.so
if [ ! -e "$library" ]; then
    mkdir -p "${library%/*}"
    # Renamed in the end, so that several tests may build it at once.
    ${CXX:-g++} "${flags[@]}" "$source/emulator/emulator.cpp" -o "$library.$$" >&2
    mv "$library.$$" "$library"
fi
echo "$library"
