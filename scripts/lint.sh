#!/usr/bin/env bash
# Lints every crate of the workspace that was built since its last lint, with clippy. A warning is an error. Clippy repeats the
# compiler's call that scripts/rustc.sh noted, without code generation, against the dependencies as they were built. `cargo
# clippy` would check all dependencies and compile the C++ once more.
set -euo pipefail
cd "$(dirname "$0")/.."
notes=${CARGO_TARGET_DIR:-$PWD/target}/release/lint

lint() {
    local note=$1 words variables=() call=() previous='' scratch
    mapfile -d '' -t words <"$note"
    for ((at = 1; at < ${#words[@]}; at++)); do
        [ -n "${words[at]}" ] || break
        variables+=("${words[at]}")
    done
    scratch=$(mktemp -d)
    for word in "${words[@]:at + 1}"; do
        case $previous$word in
            --emit=*) word=--emit=metadata ;;
            --error-format=* | --json=*) continue ;; # readable messages
            --out-dir?*) word=$scratch ;;
        esac
        call+=("$word")
        previous=
        [ "$word" != --out-dir ] || previous=$word
    done
    # The note is kept until there is nothing to say. A crate that is gone has none.
    if ! [[ -e ${words[0]} && " ${call[*]} " =~ \ ([^\ ]+\.rs)\  && -e ${words[0]}/${BASH_REMATCH[1]} ]]; then
        rm "$note"
    elif cd "${words[0]}" && env "${variables[@]}" clippy-driver "${call[@]}" -D warnings --diagnostic-width=120 >"$scratch/messages" 2>&1; then
        rm "$note"
    else
        cat "$scratch/messages" >&2
    fi
    rm -r "$scratch"
    [ ! -e "$note" ]
}

if [ $# -gt 0 ]; then
    lint "$1"
    exit
fi
clippy-driver --version >/dev/null 2>&1 || { echo "lint: clippy is missing; rustup component add clippy" >&2; exit 1; }
[ -d "$notes" ] || { echo "lint: nothing is built yet; cargo build --release --workspace --all-targets" >&2; exit 1; }
# Those with the longest calls first: they have the most dependencies.
ls -S "$notes" | xargs -P "$(nproc)" -I NAME scripts/lint.sh "$notes/NAME"
