#!/bin/sh
# The whole suite on PostgreSQL, then what touches a database again on SQLite, coverage of both
# together. Stops at the first engine that fails, so the last line is always the verdict.
set -eu
cd "$(dirname "$0")/.."
python=${VENV:-.venv}/bin/python
workers=${TEST_WORKERS:-2}
rm -f .coverage .coverage.*

echo "== suite on postgres"
TEST_ENGINE=postgres "$python" -m pytest -q -n "$workers" --cov --cov-report= "$@"
echo "== suite on sqlite (only tests that touch a database; the others have just run)"
TEST_ENGINE=sqlite TEST_LEG=second "$python" -m pytest -q -n "$workers" \
    --cov --cov-append --cov-report=term:skip-covered "$@"
