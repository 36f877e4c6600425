# Sourced by the other scripts: a virtual environment with the package and everything the commands need.
#
# usage: environment EXTRAS      sets $python and $infsa
# The environment is kept in .venv and built again only when what it was built from has changed. The GPU plugin library
# is left out: it takes minutes to compile, a CPU does not need it, and its tests build it themselves.

environment() {
    local extras=$1 stamp root
    root=$(git rev-parse --show-toplevel 2>/dev/null || pwd)
    python=$root/.venv/bin/python infsa=$root/.venv/bin/infsa-deploy
    # shellcheck disable=SC2046 # file names of this tree hold no blanks
    stamp=$(cd "$root" && { echo "$extras"; cat pyproject.toml scripts/constraints.txt; \
        find infsa_deploy models plugins -type f -not -name '*.pyc' | sort | xargs cat; } | sha256sum)
    if [ "$(cat "$root/.venv/stamp.$extras" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    "$python" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear "$root/.venv" # one cut off has no pip
    rm -f "$root"/.venv/stamp.* # of what this replaces
    "$python" -m pip install --quiet --constraint "$root/scripts/constraints.txt" \
        --config-settings cmake.define.INFSA_PLUGINS=OFF "$root[$extras]"
    echo "$stamp" > "$root/.venv/stamp.$extras"
}
