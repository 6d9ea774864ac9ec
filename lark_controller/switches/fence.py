"""The fence: once a higher generation than this instance's is in charge, nothing is written to any switch any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from lark_common.log import WARNING, event

# Reason why a connection ends once the fence is shut.
FENCED: Final = "another instance of the controller is in charge of the switches"

_HALF: Final = 1 << 63
_ALL: Final = 1 << 64


def is_later(generation: int, other: int) -> bool:
    """True where a switch that obeys ``generation`` refuses ``other``: their difference is a signed number of 64 bits
    (OpenFlow 1.3.5, section 6.3.4)."""
    return (other - generation) % _ALL >= _HALF


class Fence:
    """The fence around all switches of one instance, for any thread.

    ``fenced`` is called once, with a sentence, when the fence is shut; it may not wait. A switch is trusted for itself
    alone, so ``shown``, if given, is called with the sentence in place of that whenever a switch or its database shows
    a higher generation: whoever passes it asks the database which generation is in charge, and calls :meth:`shut` if
    it is another's. It may not wait either. That switch is not written to in any case.
    """

    def __init__(
        self, fenced: Callable[[str], None] = lambda _sentence: None, shown: Callable[[str], None] | None = None
    ) -> None:
        # Read before every write to a switch.
        self.is_shut = False
        self.reason = ""
        self._fenced = fenced
        self._shown = shown
        self._lock = threading.Lock()
        self._followers: list[Callable[[], None]] = []

    def show(self, sentence: str) -> None:
        """Take note that a switch or its database shows a higher generation."""
        if self._shown is None:
            self.shut(sentence)
        elif not self.is_shut:
            self._shown(sentence)

    def shut(self, sentence: str) -> None:
        """Write nothing any more to any switch; ``sentence`` is the reason. Only the first call counts."""
        with self._lock:
            if self.is_shut:
                return
            self.is_shut, self.reason = True, sentence
            followers, self._followers = self._followers, []
        event("fenced: nothing is written to switches any more", level=WARNING, reason=sentence)
        for follow in followers:
            follow()
        self._fenced(sentence)

    def when_shut(self, follow: Callable[[], None]) -> None:
        """Call ``follow``, on whichever thread shuts the fence, once it is shut (at once if it is so now)."""
        with self._lock:
            if not self.is_shut:
                self._followers.append(follow)
                return
        follow()
