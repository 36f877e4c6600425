#!/usr/bin/env bash
# Everything that must hold, from nothing: environment, checks, a wheel in an empty environment, tests.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
environment export,cpu,rtx,energy,evaluate,plot,peers,serve,ray,dev
# TensorRT's headers, and KServe's schema; the wheels ask for packages that these do not need
"$python" -m pip install --quiet --no-deps kernel-lens==2.0.1 kserve==0.21.0
export PATH=$PWD/.venv/bin:$PATH

bin=.venv/bin
$bin/ruff check .
$bin/ruff format --check .
$bin/mypy
PYTHONPATH=models:plugins $bin/lint-imports
exec $bin/python -m pytest "$@"
