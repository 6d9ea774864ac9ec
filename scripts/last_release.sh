#!/bin/sh
# Make the archive of the last release, with which tests run two releases side by side: last_release.sh REF (a tag).
#
# It holds the programs alone, as `git archive` gives them: a checkout without history has it too. The commit is in its
# head (git get-tar-commit-id). The same commit gives the same archive.
set -eu
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { echo "usage: last_release.sh REF" >&2; exit 2; }
into=tests/cluster/last_release.tar.xz
commit=$(git rev-parse --verify --quiet "$1^{commit}") || { echo "last_release.sh: $1 is no commit here" >&2; exit 1; }
made=$(mktemp)
trap 'rm -f "$made"' EXIT
git archive --format=tar --output="$made" "$commit" lark_common lark_controller lark_worker migrations
xz -9e --threads=1 --stdout "$made" >"$into"
echo "$into: $(wc -c <"$into") bytes, of $commit"
