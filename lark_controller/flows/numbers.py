"""A set of job numbers from which the next ones in order are had without sorting all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet
from typing import Final, Self

# Numbers of one block: those with the same bits above so many.
_BITS: Final = 10


class NumberSet(MutableSet[int]):
    """Numbers in blocks. One thread changes it; others may read meanwhile, and see each number that stays."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._blocks: dict[int, set[int]] = {}
        self._count = 0
        self.update(numbers)

    def __contains__(self, number: object) -> bool:
        block = self._blocks.get(number >> _BITS) if isinstance(number, int) else None
        return block is not None and number in block

    def __iter__(self) -> Iterator[int]:
        # Copies, each made in one step, since the set may change meanwhile.
        for block in list(self._blocks.values()):
            yield from list(block)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"NumberSet({sorted(self)})"

    def add(self, value: int) -> None:
        """Add a number."""
        block = self._blocks.setdefault(value >> _BITS, set())
        self._count += value not in block
        block.add(value)

    def discard(self, value: int) -> None:
        """Take a number out, if it is there."""
        block = self._blocks.get(value >> _BITS)
        if block is None or value not in block:
            return
        block.remove(value)
        self._count -= 1
        if not block:
            del self._blocks[value >> _BITS]

    def update(self, numbers: Iterable[int]) -> None:
        """Add numbers."""
        blocks = self._blocks
        for number in numbers:
            blocks.setdefault(number >> _BITS, set()).add(number)
        self._count = sum(map(len, blocks.values()))

    def copy(self) -> Self:
        """A copy."""
        made = type(self)()
        made._blocks = {place: block.copy() for place, block in self._blocks.items()}
        made._count = self._count
        return made

    def after(self, number: int | None, *, down: bool = False) -> Iterator[int]:
        """The numbers above this one in order, or with ``down`` those below it from the highest on; None: all.

        Costs a block for each block that is read, and once the sorting of the blocks' places.
        """
        places: Iterable[int] = list(self._blocks)
        if number is not None:
            at = number >> _BITS
            places = (place for place in places if (place <= at if down else place >= at))
        for place in sorted(places, reverse=down):
            for each in sorted(self._blocks.get(place, ()), reverse=down):
                if number is None or (each < number if down else each > number):
                    yield each
