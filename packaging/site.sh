#!/bin/sh
# Fill a directory with the Python packages of one role: site.sh ROLE PYTHON PLATFORM WHEELS DIRECTORY
#
#   ROLE      controller or worker
#   PYTHON    3.11, 3.12, … of the distribution
#   PLATFORM  the newest C library that it has, as uv names it: x86_64-manylinux_2_36
#   WHEELS    a directory with our own wheels (scripts/wheels.sh)
#
# The locked versions, each compared with its hash. Ready-made wheels alone, so that one machine fills directories for
# the Pythons of all distributions; uv, unlike pip, takes the other Python for the one that the lock's conditions ask for.
set -eu
role=$1
python=$2
platform=$3
wheels=$4
site=$5
cd "$(dirname "$0")/.."
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case $role in
    controller) lock=requirements.txt own=lark-controller ;;
    worker) lock=requirements-worker.txt own=lark-worker ;;
    *)
        echo "site.sh: no such role: $role" >&2
        exit 2
        ;;
esac

add() { .venv/bin/uv pip install --quiet --target "$site" --python-version "$python" --python-platform "$platform" --no-deps "$@"; }

# ovs is published as source alone. Without its optional C part, for which pip finds no library here, it fits every Python.
awk '/^[a-zA-Z0-9]/ { skip = /^ovs==/ } !skip' "$lock" >"$work/wheels.txt"
awk '/^[a-zA-Z0-9]/ { keep = /^ovs==/ } keep' "$lock" >"$work/source.txt"
add --only-binary :all: --require-hashes -r "$work/wheels.txt"
if [ -s "$work/source.txt" ]; then
    .venv/bin/python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --no-binary :all: \
        --require-hashes --wheel-dir "$work" -r "$work/source.txt"
    for wheel in "$work"/*.whl; do
        case $wheel in
            *-none-any.whl) add "$wheel" ;;
            *)
                echo "site.sh: ${wheel##*/} fits the Python of this machine alone" >&2
                exit 1
                ;;
        esac
    done
fi
add --no-index --find-links "$wheels" lark-common "$own"
# Programs that begin with the path of this machine's Python, what stage.sh puts in its place, and notes of where uv found
# a file.
rm -rf "${site:?}/bin" "$site"/share/lark-* "$site/.lock"
find "$site" \( -name direct_url.json -o -name uv_cache.json -o -name uv_build.json \) -exec rm {} +
# Libraries are not started.
find "$site" -name '*.so*' -type f -exec chmod a-x {} +
chmod -R go-w "$site"
