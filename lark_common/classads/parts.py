"""An ad that is checked as a whole, and of which HTCondor's parser gets what is asked for."""

from __future__ import annotations

from typing import Any, TypeAlias

import classad2


class PartAd:
    """An ad of these ``names`` (in lower case), each of whose ``lines`` is known to be one attribute.

    ``part`` has the attributes ``plain``, which are literals. All others come out of the whole ad, which is parsed when
    one of them is asked for: most posts need none, and parsing them took longer than anything else of a post.
    """

    __slots__ = ("_lines", "_part", "_plain", "_whole", "names")

    def __init__(self, lines: str, names: frozenset[str], part: classad2.ClassAd, plain: frozenset[str]) -> None:
        self.names = names
        self._lines = lines
        self._part = part
        self._plain = plain
        self._whole: classad2.ClassAd | None = None

    @property
    def whole(self) -> classad2.ClassAd:
        """The whole ad; not to be changed."""
        if self._whole is None:
            # Of an empty text there is no ad.
            found = classad2.parseNext(self._lines, classad2.Parser.Old) if self._lines else classad2.ClassAd()
            self._whole = found
        return self._whole

    def __getitem__(self, name: str) -> Any:
        lowered = name.lower()
        if lowered in self._plain:
            return self._part[name]
        if lowered not in self.names:
            raise KeyError(name)
        return self.whole[name]

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.names


Ad: TypeAlias = classad2.ClassAd | PartAd


def whole(ad: Ad) -> classad2.ClassAd:
    """The whole of an ad, with all that HTCondor's own class can do."""
    return ad.whole if isinstance(ad, PartAd) else ad


def lower_names(ad: classad2.ClassAd) -> frozenset[str]:
    """The names of an ad's attributes in lower case."""
    return frozenset(map(str.lower, ad))
