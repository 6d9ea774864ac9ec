#!/bin/sh
# Do and check all that a release needs: release.sh [DISTRIBUTION]... (those of packages.sh; all of them). It changes
# nothing in the repository; its last line is the command that tags the release.
#
# In dist/release are then: the wheels (built twice, equal byte for byte), a list of all parts of each program (SBOM,
# CycloneDX), the packages, the release's part of the changelog, and SHA256SUMS of them all.
# TESTS=no leaves `make test` out, where it has passed for this commit elsewhere.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'release: %s\n' "$*"; }
die() { printf 'release: %s\n' "$*" >&2; exit 1; }

[ -z "$(git status --porcelain)" ] || die "the work tree has changes that are not committed (git status)"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' lark_controller/__init__.py)
for file in pyproject.toml lark_common/pyproject.toml lark_mpi/pyproject.toml lark_worker/pyproject.toml; do
    grep -q "^version = \"$version\"$" "$file" || die "$file has another version than lark_controller/__init__.py, $version"
done
grep -q "^lark-common==$version$" requirements-own.in || die "requirements-own.in does not name lark-common==$version"
heading=$(grep -m 1 '^## ' CHANGELOG.md)
printf '%s\n' "$heading" | grep -qE "^## $version \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$" ||
    die "the first section of CHANGELOG.md is \"$heading\"; a release needs \"## $version (YYYY-MM-DD)\""
[ "$(grep -c "^## $version " CHANGELOG.md)" -eq 1 ] || die "CHANGELOG.md has several sections of $version; make one of them"
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || die "the tag v$version exists already"
if last=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null); then
    beside=tests/cluster/last_release.tar.xz
    [ "$(xz -dc "$beside" | git get-tar-commit-id)" = "$(git rev-parse "$last^{commit}")" ] ||
        die "$beside, from which upgrades are tested, is not of $last (make last-release REF=$last)"
fi

[ "${TESTS:-yes}" = no ] || make test

into=dist/release
rm -rf "$into"
mkdir -p "$into"
# Files of a wheel get the time of the commit, so that everybody who builds it gets the same.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
again=$(mktemp -d)
trap 'rm -rf "$again"' EXIT
scripts/wheels.sh "$into"
scripts/wheels.sh "$again"
for wheel in "$into"/*.whl; do
    cmp "$wheel" "$again/${wheel##*/}" || die "${wheel##*/} is another one when it is built again"
done
say "wheels are the same when they are built again"

sbom() { # sbom PROGRAM PYPROJECT REQUIREMENTS
    .venv/bin/cyclonedx-py requirements --pyproject "$2" --mc-type application --output-reproducible --of JSON --validate \
        -o "$into/$1-$version.cdx.json" "$3" 2>"$again/log" || { cat "$again/log" >&2; die "no SBOM of $1"; }
}
sbom lark-controller pyproject.toml requirements.txt
sbom lark-worker lark_worker/pyproject.toml requirements-worker.txt

scripts/packages.sh "$@"
[ $# -gt 0 ] || set -- debian12 debian13 el9 el10
for name in "$@"; do
    cp -R "dist/$name" "$into/$name"
done
awk '/^## /{found++} found == 1' CHANGELOG.md >"$into/changes.md"
(cd "$into" && find . -type f | LC_ALL=C sort | xargs -d '\n' sha256sum) >"$again/sums"
mv "$again/sums" "$into/SHA256SUMS"
say "$(wc -l <"$into/SHA256SUMS") files in $into; to tag it: git tag -s v$version -m 'Lark $version'"
