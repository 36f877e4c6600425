#!/usr/bin/env bash
# Everything that must hold, from nothing: environment, checks, a wheel in an empty environment, tests.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
environment export,cpu,rtx,dev
export PATH=$PWD/.venv/bin:$PATH

bin=.venv/bin
$bin/ruff check .
$bin/ruff format --check .
$bin/mypy
PYTHONPATH=models:plugins $bin/lint-imports
exec $bin/python -m pytest "$@"
