"""Switches that reach an instance which stands by, and not the active one."""

from __future__ import annotations

from typing import Final, Protocol

# Switches in one question; each has 8 bytes.
MOST: Final = 16_384
LONGEST_QUESTION: Final = 8 * MOST


class MissedSwitchControls(Protocol):
    """The switches that those which stand by are connected to, and the active instance is not. Thread-safe."""

    def exchange(self, reader: str, question: bytes) -> bytes:
        """Take the switches that an instance keeps, and answer those that it is to hand on; either is as
        :mod:`lark_controller.services.handed_on_switches` has it. Raises ValueError for a question that is none."""
