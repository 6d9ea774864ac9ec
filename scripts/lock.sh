#!/bin/sh
# Lock the dependencies: requirements.in -> requirements.txt, requirements-dev.in -> requirements-dev.txt.
# Hashes of all files of a version are recorded, so that one lock serves every platform and Python from 3.11 to 3.13,
# and no address is, so that it installs from whatever index the machine is set up for.
set -eu
cd "$(dirname "$0")/.."
[ -x .venv/bin/pip-compile ] || { echo "lock.sh: no .venv; run scripts/setup.sh first" >&2; exit 1; }
for name in requirements requirements-dev; do
    .venv/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
        --no-emit-index-url --no-emit-trusted-host --no-emit-find-links "$@" \
        --output-file "$name.txt" "$name.in"
    if grep -nE '://|^-i |^--(index|extra-index|find-links|trusted-host)' "$name.txt"; then
        echo "lock.sh: $name.txt names an address" >&2
        exit 1
    fi
done
