"""Counters of switches that instances which stand by read for the active one."""

from __future__ import annotations

from typing import Protocol


class CounterControls(Protocol):
    """Hands out orders to read counters, and takes the answers. Thread-safe."""

    def exchange(self, reader: str, answer: bytes) -> bytes:
        """Take the answer of an instance to its last order (``b""``: it had none), and give it the next; either is as
        :mod:`lark_controller.accounting.shares.messages` has it. Raises ValueError for an answer that is none."""
