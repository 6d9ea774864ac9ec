"""Checks that this machine's own name resolves: HTCondor's library asks for it when it is loaded, again and again."""

from __future__ import annotations

import socket
import threading

from lark_common.log import WARNING, event

# Limit on the wait for the name service.
SECONDS = 3.0


def problem(seconds: float = SECONDS) -> str:
    """The problem with this machine's own name, ``""`` where it resolves within ``seconds``."""
    name = socket.gethostname()
    found = [f"{name}: no answer within {seconds:g} s"]

    def ask() -> None:
        try:
            socket.getaddrinfo(name, None)
            found.append("")
        except OSError as error:
            found.append(f"{name}: {error.strerror}")

    # The resolver takes no time limit; a thread that still waits there ends with the process.
    thread = threading.Thread(target=ask, name="own name", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[-1]


def warn() -> None:
    """Log a warning that the next step takes minutes, where this machine's own name does not resolve.

    To be called before ``classad2`` or ``htcondor2`` is imported.
    """
    wrong = problem()
    if wrong:
        event(
            "this machine's own name does not resolve; HTCondor's library waits for it for about two minutes now",
            level=WARNING,
            name=wrong,
            remedy="a line with the name in /etc/hosts",
        )
