#!/usr/bin/env bash
# Compiles a crate of the workspace: cargo calls this in place of rustc in every build (.cargo/config.toml). It leaves a note
# of how the crate was compiled, by which scripts/lint.sh lints it later. So a build waits for no lint, and set-up and tests
# share what is compiled.
set -euo pipefail
"$@"

out='' name='' kind='' links=false previous=''
for word in "$@"; do
    case $previous$word in
        --emit=*link*) links=true ;;
        --out-dir?*) out=$word ;;
        --crate-name?*) name=$word ;;
        --crate-type?*) kind+=.$word ;;
        --test) kind+=.test ;;
    esac
    previous=
    case $word in --out-dir | --crate-name | --crate-type) previous=$word ;; esac
done
# Cargo also asks for rustc's version, and checks crates without building them.
$links && [ -n "$out" ] || exit 0

# In the profile's folder, one note for each crate and kind: only its newest build is linted.
notes=${out%/deps}
notes=${notes%/build/*}/lint
note=$notes/${CARGO_PKG_NAME-}.$name$kind
mkdir -p "$notes"
{
    printf '%s\0' "$PWD"
    # The variables that a crate may read: those of cargo and of our build scripts.
    env -0 | grep -zE '^(CARGO_(BIN|CRATE|MANIFEST|PKG|PRIMARY|TARGET_TMPDIR)|OUT_DIR=|NESTOR_BUILD)' || true
    printf '\0'
    printf '%s\0' "$@"
} >"$note.$$"
mv "$note.$$" "$note"
