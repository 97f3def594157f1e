#!/bin/sh
# The whole suite on PostgreSQL, then what touches a database again on SQLite. Stops at the first
# engine that fails, so the last line is always the verdict. COVERAGE=1 measures both together.
# A third of the tests of processes is drawn by the commit; FAILPOINTS=all tries every one.
set -eu
cd "$(dirname "$0")/.."
python=${VENV:-.venv}/bin/python
# One more than the cores that are usual: tests of processes wait more than they compute.
workers=${TEST_WORKERS:-3}
first="" second=""
[ $# -gt 0 ] || export DRAW=1 # whoever names tests wants those
if [ -n "${COVERAGE:-}" ]; then
    rm -f .coverage .coverage.*
    first="--cov --cov-report=" second="--cov --cov-append --cov-report=term:skip-covered"
fi

echo "== suite on postgres"
# shellcheck disable=SC2086 # the options are words
TEST_ENGINE=postgres "$python" -m pytest -q -n "$workers" --dist worksteal $first "$@"
echo "== suite on sqlite (only tests that touch a database; the others have just run)"
# shellcheck disable=SC2086
TEST_ENGINE=sqlite TEST_LEG=second "$python" -m pytest -q -n "$workers" --dist worksteal \
    $second "$@"
