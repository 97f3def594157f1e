#!/bin/sh
# Makes $VENV (default .venv) and installs this project with one extra: `sh tools/venv.sh dev`.
# Does nothing when pyproject.toml, the interpreter and the extra are those of the last time.
set -eu
cd "$(dirname "$0")/.."
extra=${1:-dev}
venv=${VENV:-.venv}

usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14 \
        /usr/bin/python3 /usr/local/bin/python3; do
        if command -v "$name" >/dev/null 2>&1 && usable "$name"; then
            command -v "$name"
            return
        fi
    done
    echo "No Python >= 3.11 with its venv module was found." >&2
    echo "On Debian and Ubuntu: apt-get install python3 python3-venv. Or name one: PYTHON=... make" >&2
    return 1
}

if ! "$venv/bin/python" -c 'import pip' >/dev/null 2>&1; then
    python=$(find_python)
    echo "Making $venv with $python"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

# The tests of pages need a browser of the machine's own; without one their driver is left out.
if [ "$extra" = test ]; then
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        if command -v "$name" >/dev/null 2>&1; then
            extra=test,browser
            break
        fi
    done
fi

want="$(cksum <pyproject.toml) $("$venv/bin/python" -V)"
for had in "$extra" dev; do # dev contains every other extra
    if [ "$(cat "$venv/.installed-$had" 2>/dev/null)" = "$want" ]; then
        exit 0
    fi
done
echo "Installing django-roundtable[$extra] into $venv (first time, or pyproject.toml changed)"
"$venv/bin/python" -m pip install --disable-pip-version-check -qq -e ".[$extra]" ${PIP_MORE:-}
printf '%s\n' "$want" >"$venv/.installed-$extra"
