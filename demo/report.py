"""The output of the demo: headings, paragraphs, tables, and checks, of which those that failed are kept."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence

WIDTH = 100
_BOLD, _GREEN, _RED = "1", "32", "31"


def shortened(line: str) -> str:
    """A line that would not fit, cut off."""
    room = WIDTH - 4
    return line if len(line) <= room else f"{line[: room - 2]} …"


class Report:
    """Standard output, for a person. Colours stand on a terminal alone, and not where NO_COLOR is set."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._chapter = 0
        self._began = time.monotonic()

    def chapter(self, title: str) -> None:
        """Begin a numbered chapter."""
        self._chapter += 1
        seconds = f"{time.monotonic() - self._began:.0f} s"
        text = f"{self._chapter}. {title}"
        print(f"\n{self._paint(text, _BOLD)}{seconds.rjust(WIDTH - len(text))}\n{'-' * WIDTH}", flush=True)

    def say(self, *paragraphs: str) -> None:
        """Print paragraphs, filled."""
        for paragraph in paragraphs:
            print(textwrap.fill(" ".join(paragraph.split()), WIDTH, break_on_hyphens=False), flush=True)

    def lines(self, lines: Iterable[str], indent: str = "    ") -> None:
        """Print lines as they are; what is too long goes on in the next line."""
        for line in lines:
            further = " " * len(indent) + " " * (len(line) - len(line.lstrip()) + 2)
            print(
                textwrap.fill(line, WIDTH, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False),
                flush=True,
            )

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "    ") -> None:
        """Print a table with aligned columns."""
        widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
        for row in (head, *rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print(indent + "  ".join(cells).rstrip(), flush=True)

    def check(self, claim: str, good: bool, otherwise: str = "") -> bool:
        """Say whether a claim holds; one that does not makes the demo fail."""
        word = self._paint("  ok  ", _GREEN) if good else self._paint(" FAIL ", _RED)
        text = claim if good or not otherwise else f"{claim} (instead: {otherwise})"
        filled = textwrap.fill(text, WIDTH - 6, subsequent_indent=" " * 6)
        print(f"{word}{filled}", flush=True)
        if not good:
            self.failures.append(text)
        return good

    def end(self, reached_end: bool) -> bool:
        """Print the outcome; True where everything was as expected."""
        seconds = time.monotonic() - self._began
        print()
        if reached_end and not self.failures:
            print(self._paint(f"Everything was as expected, in {seconds:.0f} seconds.", _GREEN), flush=True)
            return True
        if not reached_end:
            print(self._paint("The demo did not reach its end.", _RED), flush=True)
        if self.failures:
            print(self._paint(f"{len(self.failures)} checks were not as expected:", _RED), flush=True)
            self.lines(self.failures, "  - ")
        return False

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colours else text
