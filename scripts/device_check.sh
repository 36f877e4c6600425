#!/usr/bin/env bash
# The kernels and the plugin library on this machine's GPU: numbers, then timings, as JSON; within 8 minutes.
# Needs python with torch, triton and onnxscript, CMake and g++; TensorRT's headers for the library. Without a GPU it
# checks what a CPU can and says so.
#
# usage: scripts/device_check.sh [--json FILE] [--prepare SM | --prebuilt]      PYTHON=... names another interpreter
#   --prepare 90   builds for a GPU of that SM, where the headers and compilers are; copy build/device_check from there
#   --prebuilt     builds nothing: takes what lies in build/device_check
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=.:models:plugins PYTHONUNBUFFERED=1
exec timeout 470 "${PYTHON:-python3}" -m tests.plugins.device_check "$@"
