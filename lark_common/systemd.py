"""Notices to systemd (sd_notify(3)): the service is ready, alive, stopping. None is sent where none is asked for.

And the boot that a service runs in."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from lark_common import log
from lark_common.threads import StoppableThread

# Notices in the time after which systemd takes a silent service for dead.
_NOTICES: Final = 3


class Notices:
    """Notifies systemd of a service's life, as its unit asks (``Type=notify``, ``WatchdogSec=``).

    ``alive`` is asked again and again after :meth:`ready`, on a thread of its own, and may take a while. While it is
    false nothing is sent, so that systemd starts the service again.
    """

    def __init__(self, alive: Callable[[], bool], environment: Mapping[str, str] = os.environ) -> None:
        self._alive = alive
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._pause = _watchdog_seconds(environment) / _NOTICES
        self._thread = StoppableThread("systemd", self._run)
        self._is_ready = False

    def ready(self) -> None:
        """Report that the service has started: it answers. Idempotent."""
        if self._is_ready:
            return
        self._is_ready = True
        self._send("READY=1")
        if self._address and self._pause:
            self._thread.start()

    def status(self, sentence: str) -> None:
        """Report the present work of the service, which ``systemctl status`` shows."""
        self._send(f"STATUS={sentence}")

    def stopping(self) -> None:
        """Report that the service begins to stop."""
        self._thread.stop()
        self._send("STOPPING=1")

    def _run(self) -> None:
        while not self._thread.pause(self._pause):
            try:
                if self._alive():
                    self._send("WATCHDOG=1")
            except Exception as error:  # an unexpected error must not end this thread, and with it the service
                log.failure("liveness could not be checked", error)
                self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        # An abstract socket has an @ where its name has a zero byte.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notices:
                notices.settimeout(5.0)
                notices.sendto(state.encode(), address)
        except OSError as error:
            log.event("systemd cannot be notified", level=log.WARNING, state=state, reason=error)


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """Seconds of silence that systemd bears of this process; 0 where it does not watch it."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return max(int(environment.get("WATCHDOG_USEC", "0")), 0) / 1e6
    except ValueError:
        return 0.0


def boot_id() -> str:
    """The kernel's name of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
