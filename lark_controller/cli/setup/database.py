"""The trial of the database as the controller's user: ``python -m lark_controller.cli.setup.database`` with the URL on
standard input.

A program of its own, since a server may admit that user alone (``peer``), and a password file may be that user's.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from lark_common.errors import LarkError, StoreError
from lark_controller.cli.setup.files import Service

# A server that is reached answers in a second; one that is not, is given up after five.
_SECONDS: Final = 120


def main() -> int:
    """Try the database out; 1 with a sentence on standard error where it is not fit."""
    from lark_controller.store.trial import try_out

    try:
        print(try_out(sys.stdin.read()))
    except LarkError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def try_as(service: Service, url: str) -> str:
    """Try a database out as the controller's user, with nothing of the caller's environment; returns the server in
    words. Raises StoreError."""
    command = [sys.executable, "-I", "-m", __name__]
    environment = {"HOME": service.home, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    try:
        done = subprocess.run(
            command,
            input=url,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            cwd="/",
            env=environment,
            user=None if service.is_caller else service.uid,
            group=None if service.is_caller else service.gid,
            extra_groups=None if service.is_caller else service.groups,
        )
    except subprocess.TimeoutExpired:
        raise StoreError(f"the database has not answered within {_SECONDS} s") from None
    except OSError as error:
        reason = f"the user {service.name} cannot run {error.filename}: {error.strerror}"
        raise StoreError(f"the database cannot be tried as the controller does: {reason}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it ended without a word"]
        # A sentence for the user; else the last line of a traceback, which has the reason.
        raise StoreError("\n".join(lines) if done.returncode == 1 and lines[0][:9] != "Traceback" else lines[-1])
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
