#!/usr/bin/env bash
# The kernels and the plugin library on this machine's GPU: numbers, then timings, as JSON; within 8 minutes.
# Needs python with torch, triton and onnxscript, and g++; TensorRT's headers for the library. Without a GPU it checks
# what a CPU can and says so.
#
# usage: scripts/device_check.sh [FILE.json]      PYTHON=... names another interpreter
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=.:models:plugins PYTHONUNBUFFERED=1
exec timeout 470 "${PYTHON:-python3}" -m tests.plugins.device_check ${1:+--json "$1"}
