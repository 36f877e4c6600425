#!/usr/bin/env bash
# Serves a model repository on this machine's CPU with the Triton server that the nvidia-pytriton wheel carries. That
# one has the python backend alone: package with --backend python. On a GPU take NVIDIA's container instead.
#
# usage: scripts/serve_triton.sh REPO [OPTION OF TRITONSERVER ...]
# It has an environment of its own, .triton, because its packages and ours want different versions of protobuf.
set -euo pipefail
repo=$(realpath "${1:?name the repository: scripts/serve_triton.sh REPO}")
shift
root=$(cd "$(dirname "$0")/.." && pwd)
env=$root/.triton python=$root/.triton/bin/python
stamp=$(cat "$0" "$root/scripts/constraints.txt" | sha256sum)
if [ "$(cat "$env/stamp" 2>/dev/null)" != "$stamp" ]; then
    echo "installing into .triton (the first time takes a minute)" >&2
    rm -rf "$env"
    python3 -m venv "$env"
    "$python" -m pip install --quiet --constraint "$root/scripts/constraints.txt" nvidia-pytriton onnxruntime pillow
    package=$("$python" -c "import importlib.util as u; print(*u.find_spec('pytriton').submodule_search_locations)")
    printf '%s\n' "$root" "$root/models" > "$(dirname "$package")/infsa_deploy.pth"
    version=$("$python" -c "import sys; print('%d.%d' % sys.version_info[:2])")
    stub=$package/tritonserver/python_backend_stubs/$version/triton_python_backend_stub
    if [ ! -e "$stub" ]; then
        echo "this server has no backend for Python $version: put another python3 first on PATH, one of" \
            "$(ls -x "$package/tritonserver/python_backend_stubs")" >&2
        exit 3
    fi
    ln -s "$package/tritonserver" "$env/tritonserver"
    ln -s "$(dirname "$package")/nvidia_pytriton.libs" "$env/libraries"
    cp -r "$package/tritonserver/backends" "$env/backends"
    cp "$stub" "$env/backends/python/"
    echo "$stamp" > "$env/stamp"
fi
export PATH=$env/bin:$PATH LD_LIBRARY_PATH=$env/libraries
exec "$env/tritonserver/bin/tritonserver" --model-repository="$repo" --backend-directory="$env/backends" \
    --http-address=127.0.0.1 --grpc-address=127.0.0.1 --metrics-address=127.0.0.1 "$@"
