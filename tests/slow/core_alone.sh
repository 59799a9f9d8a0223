#!/usr/bin/env bash
# Shows that core needs no plugin: builds it and runs its tests in a copy without any plugin but the SDK.
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/setup.sh
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$copy"
rm -r "$copy/plugins/estimators" "$copy/plugins/environments" "$copy/plugins/openenv"
sed -i 's|, "plugins/estimators/\*", "plugins/environments/\*", "plugins/openenv"||' "$copy/Cargo.toml"
ln -s "$PWD/.venv" "$copy/.venv"
cp -a target "$copy/target"    # compiled dependencies
rm -f "$copy"/target/release/libnestor_*.so
cd "$copy"
cargo test --quiet --release --workspace
echo "core passes its tests with no plugin but the SDK"
