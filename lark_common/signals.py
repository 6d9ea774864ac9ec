"""Signals that a program waits for."""

from __future__ import annotations

import signal
from queue import SimpleQueue


class Signals:
    """Signals for the main thread, each once it has been caught, in the order of their arrival.

    A handler interrupts the main thread anywhere, also where it holds the lock of a ``threading.Event``, and would wait
    for that lock for ever. ``SimpleQueue.put`` is reentrant.
    """

    def __init__(self) -> None:
        self._received: SimpleQueue[int] = SimpleQueue()

    def catch(self, *numbers: int) -> None:
        """Keep these signals for :meth:`wait` from now on."""
        for number in numbers:
            signal.signal(number, lambda received, _frame: self._received.put(received))

    def send(self, number: int) -> None:
        """Have :meth:`wait` return this number, as if such a signal had come; from any thread."""
        self._received.put(number)

    def wait(self) -> int:
        """Wait for the next signal; returns its number."""
        return self._received.get()
