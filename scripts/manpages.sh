#!/bin/sh
# Write the manual pages into a directory: manpages.sh DIR. Those of lark and lark-worker are made from the commands' own
# parsers, with what the exit codes mean. Beside them is what completes both in bash, zsh and fish.
set -eu
cd "$(dirname "$0")/.."
into=$1
mkdir -p "$into"
page() { # page NAME SECTION MODULE DESCRIPTION EXTRA
    .venv/bin/argparse-manpage --module "$3" --function parser --prog "$1" --project-name Lark --manual-title Lark \
        --manual-section "$2" --description "$4" --format single-commands-section --include "packaging/man/$1.h2m" \
        --output "$into/$1.$2"
}
page lark 1 lark_controller.cli.parser "the network of an HTCondor pool: controller and commands"
page lark-worker 8 lark_worker.cli "the worker service of Lark, and commands to look after it"
# A shell script, which has no parser.
install -m 644 packaging/man/lark-base-flows.8 "$into/lark-base-flows.8"
for shell in bash zsh fish; do
    .venv/bin/python -m lark_controller.cli.main completion "$shell" >"$into/lark.$shell"
    .venv/bin/python -m lark_worker.cli completion "$shell" >"$into/lark-worker.$shell"
done
