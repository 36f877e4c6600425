#!/usr/bin/env bash
# From nothing to a validated model that names digits: environment, install, export, run, validate.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
echo "installing into .venv (the first time takes a few minutes)" >&2
environment export,cpu

for variant in linear pure; do
    echo
    echo "== $variant"
    "$infsa" export --variant "$variant"
    "$infsa" run "artifacts/digits_$variant.onnx" models/infsa_models/samples/*.png --top 1
    "$infsa" validate "artifacts/digits_$variant.onnx"
done
