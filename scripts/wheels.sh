#!/bin/sh
# Build the wheels lark_common, lark_worker and lark_controller: wheels.sh [DIRECTORY] (dist).
# PYTHON says with which Python, which needs setuptools 77 or newer (.venv/bin/python; /opt/lark/bin/python on a
# controller's host).
set -eu
out=${1:-dist}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
# From a copy: setuptools works beside the source, and packs whatever an earlier build has left there.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R pyproject.toml requirements.in requirements-own.in README.md LICENSE \
    lark_common lark_controller lark_worker migrations "$copy"
rm -rf "$copy"/lark_*/build "$copy"/lark_*/*.egg-info
"$python" -m pip --disable-pip-version-check wheel --quiet --no-index --no-deps --no-build-isolation \
    --wheel-dir "$out" "$copy/lark_common" "$copy/lark_worker" "$copy"
