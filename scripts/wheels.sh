#!/bin/sh
# Build the wheels lark_common, lark_mpi, lark_worker and lark_controller: wheels.sh [DIRECTORY] (dist).
# PYTHON is the Python that builds them, which needs setuptools 77 or newer (.venv/bin/python; /opt/lark/bin/python on a
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
    lark_common lark_controller lark_mpi lark_worker migrations "$copy"
rm -rf "$copy"/lark_*/build "$copy"/lark_*/*.egg-info
# What is installed beside the programs: in a virtual environment it is then in share/lark-controller or share/lark-worker.
mkdir "$copy/share" "$copy/lark_worker/share"
cp etc/lark.env etc/policy.yaml etc/policy.schema.json etc/scitags.json etc/prometheus/lark.rules.yml \
    etc/prometheus/prometheus.yml etc/grafana/lark.json etc/haproxy/lark.cfg etc/systemd/lark-controller.service etc/condor/51-lark-access-point.conf \
    etc/condor/lark-submit-help.txt etc/condor/lark-jobs.cpf etc/condor/lark-slots.cpf \
    scripts/lark-transfer-queue "$copy/share"
cp etc/worker.env etc/vlan-names.sh etc/condor/50-lark.conf etc/systemd/lark-worker.service \
    etc/systemd/lark-base-flows.service etc/systemd/lark-leaves.service etc/systemd/lark-gateway.service scripts/starter_hook.sh scripts/lark_job_wrapper.sh \
    scripts/lark-enter scripts/lark-bandwidth scripts/lark-base-flows "$copy/lark_worker/share"
cp etc/sudoers.d/lark "$copy/lark_worker/share/sudoers"
"$python" -m pip --disable-pip-version-check wheel --quiet --no-index --no-deps --no-build-isolation \
    --wheel-dir "$out" "$copy/lark_common" "$copy/lark_mpi" "$copy/lark_worker" "$copy"
