"""Signals that a program waits for."""

from __future__ import annotations

import os
import signal
from typing import Final

# Of numbers in the pipe.
_BYTES: Final = 256


class Signals:
    """Signals for the main thread, each once it has been caught, in the order of their arrival.

    A handler in Python interrupts the main thread anywhere, also where it holds the lock of a ``threading.Event``, and
    would wait for that lock for ever. And it runs only when the main thread comes back to Python: of a signal that
    comes after that thread's last look for signals and before its lock sleeps, none would hear until the next. So the
    interpreter's handler in C writes the number into a pipe (``signal.set_wakeup_fd``), and :meth:`wait` reads that.
    One of these in a process.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._caught: set[int] = set()

    def catch(self, *numbers: int) -> None:
        """Keep these signals for :meth:`wait` from now on. For the main thread."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in numbers:
            self._caught.add(number)
            signal.signal(number, _leave_to_wait)

    def send(self, number: int) -> None:
        """Have :meth:`wait` return this number, below 0 and at least -128, as if such a signal had come; from any
        thread."""
        os.write(self._write, bytes([number % _BYTES]))

    def wait(self) -> int:
        """Wait for the next signal; returns its number."""
        while True:
            number = int.from_bytes(os.read(self._read, 1), signed=True)
            # The pipe has every signal with a handler in Python, also those of others.
            if number < 0 or number in self._caught:
                return number


def _leave_to_wait(_received: int, _frame: object) -> None:
    """Do nothing: the number is in the pipe."""
