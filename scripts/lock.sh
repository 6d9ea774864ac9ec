#!/bin/sh
# Lock the dependencies: requirements.in -> requirements.txt, and the same for requirements-worker and requirements-dev.
# One lock serves every platform and every Python from 3.11 on (what only some need carries a marker), with the hashes
# of all files of a version, and without any address: it installs from whatever index the machine is set up for.
set -eu
cd "$(dirname "$0")/.."
[ -x .venv/bin/uv ] || { echo "lock.sh: no .venv/bin/uv; run scripts/setup.sh first" >&2; exit 1; }
lock() {
    name=$1
    shift
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
        --no-emit-index-url --no-emit-find-links "$@" --output-file "$name.txt" "$name.in"
    if grep -nE '://|^-i |^--(index|extra-index|find-links|trusted-host)' "$name.txt"; then
        echo "lock.sh: $name.txt names an address" >&2
        exit 1
    fi
}
lock requirements "$@"
lock requirements-worker --constraint requirements.txt "$@"
lock requirements-dev --constraint requirements.txt "$@"
