#!/usr/bin/env bash
# Everything that must hold, from nothing: environment, checks, tests.
#
# usage: scripts/test.sh [--long] [OPTION OF PYTEST ...]
# Two workers share the tests, a core each. --long runs the long proofs instead, whose results are in benchmarks/.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
environment export,cpu,rtx,energy,evaluate,plot,peers,serve,ray,tiff,dev
export PATH=$PWD/.venv/bin:$PATH OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
started=$SECONDS

mypy & # takes a core for as long as all of the rest
types=$!
# TensorRT's headers, and KServe's schema; the wheels ask for packages that these do not need
"$python" -m pip install --quiet --no-deps kernel-lens==2.0.1 kserve==0.21.0
ruff check .
ruff format --check .
PYTHONPATH=models:plugins lint-imports
wait "$types"
echo "installation took $started s, the checks $((SECONDS - started)) s"
exec python -m pytest --numprocesses=2 --durations=25 "$@"
