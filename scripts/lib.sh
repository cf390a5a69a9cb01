# Sourced by the scripts beside it: find a Python, make a virtual environment, build when needed.
# shellcheck shell=bash

say() { printf '%s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

# The first interpreter that is new enough: $PYTHON, then python3, then python3.x by name.
find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
        if [ -n "$candidate" ] && "$candidate" -c '
import sys
if sys.version_info < (3, 11):
    sys.exit(1)
print(sys.executable)' 2>/dev/null; then
            return
        fi
    done
    die "memcore needs Python 3.11 or later; set PYTHON to the interpreter to use."
}

# What `python` lacks for making a virtual environment and building an extension, one a line.
list_missing() {
    "$1" - <<'PY'
import importlib.util
import os
import shutil
import sysconfig

if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print("dev")
if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
    print("venv")
compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
if shutil.which(compiler.split()[0]) is None:
    print("compiler")
PY
}

# Make sure that `python` can make an environment and build; install Debian's packages if it may.
ensure_build_tools() {
    local python=$1 missing packages=() version item
    missing=$(list_missing "$python")
    [ -n "$missing" ] || return 0
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    for item in $missing; do
        case $item in
            compiler) packages+=(gcc libc6-dev) ;;
            *) packages+=("$version-$item") ;;
        esac
    done
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        die "$python lacks what a build needs. On Debian and Ubuntu: apt-get install ${packages[*]}"
    fi
    say "installing ${packages[*]} ..."
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${packages[@]}" >&2
    missing=$(list_missing "$python")
    [ -z "$missing" ] || die "$python still lacks: $missing; set PYTHON to another interpreter."
}

# Make the virtual environment at $1 unless a working one is there.
ensure_venv() {
    local venv=$1 python
    if "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        return
    fi
    python=$(find_python)
    ensure_build_tools "$python"
    say "making $venv with $("$python" -V) ..."
    "$python" -m venv --clear "$venv"
}

# A digest of the files named, read by the interpreter of the environment at $1.
digest() {
    local venv=$1
    shift
    { "$venv/bin/python" -VV && cat "$@"; } |
        "$venv/bin/python" -c 'import hashlib, sys
print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

# Everything but .py files, which an editable installation reads where they are.
project_digest() {
    local sources=()
    while IFS= read -r -d '' file; do sources+=("$file"); done < <(
        find memcore \( -name '*.px[di]' -o -name '*.pyx' -o -name '*.[ch]' \) ! -name _fast.c -print0 | sort -z
    )
    digest "$1" pyproject.toml setup.py "${sources[@]}"
}

# Install the project of the current directory in the environment at $1, unless it is there as a
# release build of these very sources, and nobody has built another since.
ensure_project() {
    local venv=$1 stamp now extension
    stamp=$venv/memcore.stamp
    now=$(project_digest "$venv")
    extension=$("$venv/bin/python" -c 'from memcore import _fast
print(_fast.__file__ if _fast.build_flavour() == "release" else "")' 2>/dev/null) || extension=
    if [ "$(cat "$stamp" 2>/dev/null)" = "$now" ] && [ -n "$extension" ] &&
        [ ! "$extension" -nt "$stamp" ]; then
        return
    fi
    say "building and installing memcore ..."
    rm -f "$stamp"
    env -u MEMCORE_TRACE -u MEMCORE_SANITIZE "$venv/bin/python" -m pip install --quiet --quiet \
        --disable-pip-version-check --config-settings editable_mode=compat --editable '.[cli]'
    printf '%s\n' "$now" >"$stamp"
}
