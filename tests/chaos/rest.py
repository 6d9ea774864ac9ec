"""Rest after faults: whether what is broken is still being mended, or stays as it is. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from tests.chaos.checker import Violation

# Looks, a second apart or more on a slow machine, that must find the same until it counts as broken for good; whatever
# retries does so sooner. And looks after which it counts as broken though it still changes; each may take minutes where
# nobody answers, so there is a limit in seconds, too.
SAME: Final = 90
MOST: Final = 600
SECONDS: Final = 1200.0


class Rest:
    """The violations at each look, one after the other. ``looks`` has, for each violation of the last one, the number
    of looks in a row that found it."""

    def __init__(
        self, same: int = SAME, most: int = MOST, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._same, self._most = same, most
        self._clock, self._until = clock, clock() + seconds
        self._count = self._alike = 0
        self.looks: dict[Violation, int] = {}

    def over(self, broken: Sequence[Violation] | None) -> bool:
        """Take what a look has found, None where it could see nothing; True once there is nothing to wait for: all is
        well, or what is broken stays."""
        self._count += 1
        late = self._count >= self._most or self._clock() > self._until
        if broken is None:
            self._alike = 0
            return late
        found = {each: self.looks.get(each, 0) + 1 for each in broken}
        self._alike = self._alike + 1 if found.keys() == self.looks.keys() else 1
        self.looks = found
        return not broken or self._alike >= self._same or late
