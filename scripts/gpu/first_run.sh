#!/usr/bin/env bash
# The first half hour on a rented GPU, prepared beforehand, since such a machine is lost when it idles.
#   scripts/gpu/first_run.sh [--model NAME|FILE.gguf]
#                     where it was built: makes target/first_run, which is carried with a checkout (under 60 MB; the model in
#                     pieces, one for each transfer), and prints the commands
#   scripts/gpu/first_run.sh CALL --out DIR [--device cpu]
#                     on the GPU machine: one of the calls of scripts/gpu/calls.py, 1 to 8; DIR/CALL gets checks.jsonl and table.md
#   scripts/gpu/first_run.sh piece DIR
#                     there: keeps a piece of the model; the last one makes target/first_run_model
# scripts/gpu/report.py DIR turns what came back into tables.
set -euo pipefail
cd "$(dirname "$0")/../.."
fail() { echo "first_run: $1" >&2; exit 2; }
folder=target/first_run
# compute-sanitizer for drivers of CUDA 13.0.
sanitizer=nvidia-cuda-sanitizer-api==13.0.85
most=$((60 * 1000 * 1000))

prepare() {
    local python=.venv/bin/python made=$folder/made site
    [ -x $python ] || fail "there is no .venv: run scripts/setup.sh --test first"
    rm -rf $folder
    mkdir -p $made/gpu_check/sanitizer
    scripts/gpu_check.sh --pack >&2
    mv target/gpu_check/* $made/gpu_check/
    rmdir target/gpu_check
    # The wheel is unpacked, never installed.
    $python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest $made/wheel $sanitizer ||
        fail "pip cannot download $sanitizer; without it leave out the calls' checks memcheck, synccheck and racecheck"
    $python - $made/wheel $made/gpu_check/sanitizer <<'UNPACK'
import pathlib, sys, zipfile
wheel, to = next(pathlib.Path(sys.argv[1]).iterdir()), pathlib.Path(sys.argv[2])
with zipfile.ZipFile(wheel) as archive:
    for entry in archive.infolist():
        name = pathlib.PurePath(entry.filename).name
        if name == "compute-sanitizer" or name.endswith(".so") or name.startswith("TreeLauncher"):
            (to / name).write_bytes(archive.read(entry))
            (to / name).chmod(0o755)
UNPACK
    rm -r $made/wheel
    [ -x $made/gpu_check/sanitizer/compute-sanitizer ] || fail "$sanitizer holds no compute-sanitizer"
    # Reads the model's pieces there.
    site=$($python -c 'import gguf, pathlib; print(pathlib.Path(gguf.__file__).parent)')
    mkdir $made/gpu_check/site
    cp -r "$site" $made/gpu_check/site/gguf
    find $made -name __pycache__ -prune -exec rm -r {} +
    tar -C $made -cJf $folder/gpu_check.tar.xz gpu_check
    rm -r $made
    [ "$(stat -c %s $folder/gpu_check.tar.xz)" -le $most ] || fail "$folder/gpu_check.tar.xz has more than 60 MB"
    [ $# -eq 0 ] || $python scripts/gpu/pieces.py cut "$1" $folder/model
    ls -sh $folder >&2
    echo "# Carry $folder/gpu_check.tar.xz with the checkout. Each command under its own limit, in this order:"
    $python -c 'import sys; sys.path.insert(0, "scripts/gpu"); from calls import CALLS
for number, call in enumerate(CALLS, 1):
    print(f"timeout {call.seconds + 30} scripts/gpu/first_run.sh {number} --out $OUT    # {call.about}")'
    for piece in $folder/model/*/; do
        [ ! -d "$piece" ] || echo "timeout 120 scripts/gpu/first_run.sh piece ${piece%/}    # carry it with this command"
    done
}

call() {
    local number=$1 out=; shift
    local rest=()
    while [ $# -gt 0 ]; do
        case $1 in
            --out) out=${2-}; shift 2 ;;
            *) rest+=("$1"); shift ;;
        esac
    done
    [ -n "$out" ] || fail "name a folder for the results: first_run.sh $number --out DIR"
    unpack
    read -r seconds checks < <(python_there -c 'import sys; sys.path.insert(0, "scripts/gpu"); from calls import CALLS
call = CALLS[int(sys.argv[1]) - 1]
print(call.seconds, ",".join(call.checks))' "$number")
    # The checks that are not ok are in the report; the call itself was made.
    scripts/gpu_check.sh --out "$out/$number" --deadline "$seconds" --only "$checks" "${rest[@]}" || [ $? -eq 1 ]
}

python_there() {
    if [ -x .venv/bin/python ]; then .venv/bin/python "$@"; else python3 "$@"; fi
}

unpack() {
    local packed=$folder/gpu_check.tar.xz
    [ -e $packed ] || return 0
    [ target/gpu_check/nestor -nt $packed ] || tar -C target -xJmf $packed
}

case ${1-} in
    "") prepare ;;
    --model) [ $# -eq 2 ] || fail "--model needs a name or a file"; prepare "$2" ;;
    [1-8]) call "$@" ;;
    piece)
        [ $# -eq 2 ] || fail "name the folder of a piece"
        unpack
        PYTHONPATH=target/gpu_check/site:${PYTHONPATH-} python_there scripts/gpu/pieces.py keep "$2" target/first_run_model ;;
    *) fail "no call $1; known: 1 to 8, piece, and no word or --model to prepare" ;;
esac
