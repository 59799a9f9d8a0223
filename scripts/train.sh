#!/usr/bin/env bash
# Installs and builds what is missing, then trains.
#   scripts/train.sh RECIPE [--set key.path=value]... [--run-dir DIR] [--resume]
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: scripts/train.sh RECIPE [--set key.path=value]... [--run-dir DIR] [--resume]" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/scripts/setup.sh"
exec "$root/target/release/nestor" train "$@"
