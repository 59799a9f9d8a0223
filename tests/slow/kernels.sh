#!/usr/bin/env bash
# Every kernel on 1,000 random shapes for each type, in an emulator with AddressSanitizer and UndefinedBehaviorSanitizer.
set -euo pipefail
cd "$(dirname "$0")/../.."
NESTOR_EMULATED_KERNELS=$(NESTOR_EMULATOR_SANITIZE=1 scripts/emulator.sh)
export NESTOR_EMULATED_KERNELS NESTOR_KERNEL_CASES=${NESTOR_KERNEL_CASES:-1000}
# The sanitizers must be loaded before all else. libtorch frees nothing at its end.
sanitizers="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)"
runner=$(mktemp)
trap 'rm -f "$runner"' EXIT
printf '#!/bin/sh\nLD_PRELOAD="%s" ASAN_OPTIONS=detect_leaks=0 exec "$@"\n' "$sanitizers" > "$runner"
chmod +x "$runner"
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$runner
cargo test --release --locked --workspace --test shim -- --test-threads 1 decode:: norm:: train::
