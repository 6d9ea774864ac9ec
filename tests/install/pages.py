"""The code blocks of the how-to pages, which the tests run, and a count of those that nobody has run."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def blocks(text: str) -> list[str]:
    """The indented blocks of a page in their order, without the indentation."""
    # A list's second line is indented by less; a block stands after an empty line.
    found = re.findall(r"(?m)(?:\A|\n\n)((?: {4}.*\n|\n(?= {4}))+)", text)
    return [textwrap.dedent(block).strip("\n") + "\n" for block in found]


@dataclass
class Page:
    """A how-to page. ``names`` are what stands in it for the site's own, and the site's own.

    ``folder`` has the page; that of an earlier release is elsewhere.
    """

    name: str
    names: Mapping[str, str]
    folder: Path = HOW_TO
    used: set[str] = field(default_factory=set)

    def block(self, beginning: str, *changes: tuple[str, str]) -> str:
        """The one block that begins so, with the site's names; fails where there is none, or another like it.

        ``changes`` are further replacements, for this block alone.
        """
        every = blocks(self.text())
        found = [block for block in every if block.strip() == beginning] or [
            block for block in every if block.startswith(beginning)
        ]
        assert len(found) == 1, f"{self.name}: {len(found)} blocks begin with {beginning!r}"
        self.used.add(found[0])
        text = found[0]
        for old, new in (*self.names.items(), *changes):
            assert old in text or old in self.names, f"{self.name}: {old!r} is not in\n{text}"
            text = text.replace(old, new)
        return text

    def text(self) -> str:
        """The page."""
        return (self.folder / self.name).read_text()

    def unused(self) -> list[str]:
        """The first lines of the blocks that were not asked for."""
        return [block.splitlines()[0] for block in blocks(self.text()) if block not in self.used]
