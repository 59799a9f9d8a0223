#!/usr/bin/env bash
# Runs calls of first_run.sh from the packed folder in a bare root directory, as on a rented machine: it has the shell's own tools,
# Python 3.12 with torch 2.11 and glibc, and no compiler, no cargo, no network and no other package.
#   scripts/gpu/bare.sh PYTHON DIR [CALL...]    PYTHON: a Python 3.12, such as ~/.pyenv/versions/3.12.1/bin/python. DIR gets the
#                                               root directory (6 GB) and is kept. Calls: by default 1 to 8, on the CPU
# Needs root, and target/first_run (scripts/gpu/first_run.sh). CI does not run it.
set -euo pipefail
cd "$(dirname "$0")/../.."
fail() { echo "bare: $1" >&2; exit 2; }
[ $# -ge 2 ] || fail "name a Python 3.12 and a folder"
[ "$(id -u)" = 0 ] || fail "a root directory of its own needs the user root"
[ -e target/first_run/gpu_check.tar.xz ] || fail "pack first: scripts/gpu/first_run.sh"
python=$1 root=$2; shift 2
[ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = 3.12 ] || fail "$python is no Python 3.12"
prefix=$("$python" -c 'import sys; print(sys.base_prefix)')
[ $# -gt 0 ] || set -- 1 2 3 4 5 6 7 8

# The libraries that a file links.
add_libraries() {
    local library
    ldd "$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        [ -e "$root$library" ] || cp -L --preserve=mode "$library" "$root$library"
    done || true
}

# The files with the libraries that they link.
add() {
    local file
    for file in "$@"; do
        mkdir -p "$root$(dirname "$file")"
        [ -e "$root$file" ] || cp -L --preserve=mode "$file" "$root$file"
        add_libraries "$file"
    done
}
mkdir -p "$root"/{proc,dev,tmp,out,checkout,bin,usr/bin,opt}
for tool in bash sh env cat cp rm mkdir rmdir mv ln ls tar xz stat du find grep sed awk timeout dirname basename sort head tail tr cut \
    date sleep touch chmod nproc uname id mktemp; do
    add "$(readlink -f "$(command -v $tool)")"
    ln -sf "$(readlink -f "$(command -v $tool)")" "$root/bin/$tool"
done
# Every machine has all of glibc, and the C++ runtime.
for library in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libutil.so.1 libresolv.so.2 libnss_files.so.2 libstdc++.so.6 \
    libgcc_s.so.1; do
    add /lib/x86_64-linux-gnu/$library
done
[ -e "$root/opt/python/bin/python3" ] || cp -r "$prefix" "$root/opt/python"
find "$prefix" -name '*.so' | while read -r file; do add_libraries "$file"; done
[ -e "$root/opt/site/torch" ] ||
    "$python" -m pip install --quiet --disable-pip-version-check --target "$root/opt/site" torch==2.11.0
ln -sf /opt/python/bin/python3 "$root/bin/python3"
# A checkout with the packed folder.
rm -rf "$root/checkout"
mkdir -p "$root/checkout/target/first_run"
git ls-files -z | xargs -0 cp --parents -t "$root/checkout"
cp target/first_run/gpu_check.tar.xz "$root/checkout/target/first_run/"
cat >"$root/checkout/bare_run.sh" <<'RUN'
export PATH=/bin PYTHONPATH=/opt/site LD_LIBRARY_PATH=/opt/python/lib HOME=/tmp
cd /checkout
for call in "$@"; do
    timeout 900 scripts/gpu/first_run.sh "$call" --out /out --device cpu || echo "bare: call $call ended with code $?"
done
python3 scripts/gpu/report.py /out
RUN
# No network but the loopback device.
exec unshare --mount --net --pid --fork bash -c '
    "$1" -c "import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack(\"16sh14x\", b\"lo\", 1))  # SIOCSIFFLAGS, IFF_UP"
    mount -t proc proc "$0/proc"
    mount --rbind /dev "$0/dev"
    shift
    exec chroot "$0" /bin/bash /checkout/bare_run.sh "$@"' "$root" "$python" "$@"
