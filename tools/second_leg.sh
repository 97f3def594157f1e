#!/bin/sh
# The whole suite once more on the newest Python that this machine really runs (3.12 or later) and
# the newest Django that it can have. Says so loudly when there is no such Python.
# `--prepare` only makes the environment for it.
set -eu
cd "$(dirname "$0")/.."
venv=.venv-newest

candidates() {
    # Shims of version managers answer 127, so their own folders are asked as well as PATH.
    for folder in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin /opt/python*/bin /opt/*/python*/bin \
        "$HOME"/.local/share/uv/python/*/bin /usr/local/bin /usr/bin /opt/homebrew/bin; do
        ls "$folder"/python3.[1-9][0-9] 2>/dev/null || true
    done
    for name in python3.12 python3.13 python3.14 python3.15 python3; do
        command -v "$name" || true
    done
}

newest=$(
    candidates | sort -u | while read -r python; do
        "$python" -c 'import sys, venv, ensurepip, sqlite3, ssl
v = sys.version_info
if v >= (3, 12) and v.releaselevel == "final":
    print("%d.%03d.%03d %s" % (v[0], v[1], v[2], sys.executable))' 2>/dev/null || true
    done | sort | tail -n 1
)
if [ -z "$newest" ]; then
    echo "############################################################################"
    echo "#  NO SECOND LEG: this machine has no Python >= 3.12 that runs. Only       #"
    echo "#  $(.venv/bin/python -V) with Django $(.venv/bin/python -m django --version) was tried.                          #"
    echo "############################################################################"
    exit 0
fi
python=${newest#* }
if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
VENV=$venv sh tools/venv.sh dev
"$venv/bin/python" -m pip install --disable-pip-version-check -qq --upgrade Django
[ "${1:-}" != --prepare ] || exit 0
echo "== second leg: $("$venv/bin/python" -V), Django $("$venv/bin/python" -m django --version)"
"$venv/bin/python" -m pip check
# Tests of processes and of pages have run on the first leg; here a ninth of them is drawn.
DRAW_SHARE=${DRAW_SHARE:-9} VENV=$venv sh tools/suite.sh "$@"
