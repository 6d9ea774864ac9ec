#!/bin/sh
# Compares every locked version with the published advisories, by pip-audit in a virtual environment of its own. Needs a
# way to an advisory service (PyPI's own; `-s osv` asks osv.dev). Fails where one has an advisory, or could not be asked about.
set -eu
cd "$(dirname "$0")/.."
here=${AUDIT_VENV:-.audit}
[ -x "$here/bin/pip-audit" ] || {
    "${PYTHON:-python3}" -m venv "$here"
    "$here/bin/pip" install --quiet --disable-pip-version-check 'pip-audit>=2.10,<3'
}
status=0
for file in requirements*.txt; do
    echo "$file" >&2
    "$here/bin/pip-audit" --strict --disable-pip --require-hashes --progress-spinner off -r "$file" "$@" || status=1
done
exit $status
