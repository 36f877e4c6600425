#!/usr/bin/env bash
# Everything that must hold, from nothing: environment, checks, a wheel in an empty environment, tests.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
environment export,cpu,rtx,energy,evaluate,plot,peers,serve,dev
# TensorRT's headers, for the plugins; the wheel asks for packages that its headers do not need
"$python" -m pip install --quiet --no-deps kernel-lens==2.0.1
export PATH=$PWD/.venv/bin:$PATH

bin=.venv/bin
$bin/ruff check .
$bin/ruff format --check .
$bin/mypy
PYTHONPATH=models:plugins $bin/lint-imports
exec $bin/python -m pytest "$@"
