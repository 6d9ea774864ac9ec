"""The ``lark`` command.

Exit codes: 0 done; 1 the answer is no (mistakes found, refused, not forwarded); 2 wrong usage or setting; 3 the
controller cannot be reached. Errors are one sentence on standard error.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import argcomplete

from lark_common.client import ProblemError, UnreachableError
from lark_common.errors import LarkError, SettingError
from lark_controller.cli import printing
from lark_controller.cli.commands import NO, OK
from lark_controller.cli.parser import DEFAULT_URL, parser

__all__ = ["NO", "OK", "UNREACHABLE", "UNREAD", "USAGE", "main", "parser"]

USAGE: Final = 2
UNREACHABLE: Final = 3
# As for a program that SIGPIPE ends. It is no answer: "forwarded" is 0.
UNREAD: Final = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    made = parser()
    argcomplete.autocomplete(made)
    arguments = made.parse_args(argv)
    try:
        status = _answer(arguments)
        while arguments.watch is not None:
            sys.stdout.flush()
            time.sleep(arguments.watch)
            printing.cleared()
            status = _answer(arguments)
        # Text that is still in the buffer would fail after the exit code is settled.
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader of the output has closed it; the interpreter must not complain about it while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except KeyboardInterrupt:
        return 130


def _answer(arguments: argparse.Namespace) -> int:
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except UnreachableError as error:
        where = " Set LARK_URL, or --url, to the controller's address." if arguments.url == DEFAULT_URL else ""
        return _print_error(f"{error}{where}", UNREACHABLE)
    except SettingError as error:
        return _print_error(str(error), USAGE)
    except ProblemError as error:
        source = str(getattr(arguments, "file", "policy"))
        for mistake in error.mistakes:
            print(printing.mistake(mistake, source), file=sys.stderr)
        return _print_error(f"{error}{_token_hint(arguments) if error.status == 401 else ''}", NO)
    except LarkError as error:
        return _print_error(str(error), NO)


def _token_hint(arguments: argparse.Namespace) -> str:
    """The place that the refused token came from, or that one is to be given in."""
    if arguments.munge and arguments.token_file is None:
        return ""
    if arguments.token_file is not None:
        return f" It is that of {arguments.token_file}."
    for name in ("LARK_TOKEN", "LARK_TOKEN_FILE"):
        if os.environ.get(name):
            return f" It is that of {name}."
    return " Set LARK_TOKEN_FILE, or --token-file, to a file with your token."


def _print_error(text: str, code: int) -> int:
    print(f"lark: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
