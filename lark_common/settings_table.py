"""Settings as one table: the fields of a frozen dataclass, each with its meaning, unit and accepted values.

A field ``lease_seconds: Annotated[float, About("…", "seconds", 30)] = 900.0`` of a table with the prefix ``LARK_`` is
the environment variable ``LARK_LEASE_SECONDS`` and the option ``--lease-seconds``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from lark_common.errors import SettingError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class About:
    """The meaning of a setting and the values that it accepts: unit, bounds (inclusive), the words of a choice.

    ``unix`` is true where a Unix socket may be given for an address.
    """

    meaning: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    unix: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of a table of settings. The value of a ``secret`` one is in no message."""

    name: str
    variable: str
    kind: Any
    default: str
    about: About
    secret: bool

    @property
    def option(self) -> str:
        """The command-line option."""
        return "--" + self.name.replace("_", "-")


# Reads one value, or one part of a comma-separated setting. Raises ValueError with the accepted form.
Read = Callable[[str, About], object]


class SettingsTable(Generic[Kind]):
    """The settings that are the fields of ``kind``.

    ``readers`` read types that are not among int, float, str, Path and tuples of them; ``together`` finds the mistakes
    that only several settings together make. With ``closed`` no other variable may begin with the prefix; without, only
    one that is nearly a setting's is a mistake. A field with ``repr=False`` is secret.
    """

    def __init__(
        self,
        kind: type[Kind],
        prefix: str,
        *,
        readers: Mapping[object, Read] | None = None,
        together: Callable[[Kind], Iterable[str]],
        closed: bool = False,
        others: frozenset[str] = frozenset(),
    ) -> None:
        self._kind = kind
        self._prefix = prefix
        self._readers = dict(readers or {})
        self._together = together
        self._closed = closed
        self._others = others
        self.rows = tuple(self._read_rows())

    def load(self, environ: Mapping[str, str], overrides: Mapping[str, str] | None = None) -> Kind:
        """Settings from the environment; ``overrides`` (by field name) win over it.

        Raises:
            SettingError: naming every setting that cannot be used, one a line, and what is accepted.
        """
        given = overrides or {}
        values: dict[str, Any] = {}
        mistakes = list(self._unknown(environ))
        mistakes += [f"{name}: no such setting" for name in given if name not in {row.name for row in self.rows}]
        for row in self.rows:
            text = given.get(row.name, environ.get(row.variable))
            if text is None:
                continue
            source = row.option if row.name in given else row.variable
            try:
                values[row.name] = self._convert(row.kind, row.about, text.strip())
            except ValueError as error:
                mistakes.append(f"{source}={'…' if row.secret else text}: {error}")
        if not mistakes:
            settings = self._kind(**values)
            mistakes += self._together(settings)
            if not mistakes:
                return settings
        raise SettingError("\n".join(mistakes))

    def _read_rows(self) -> Iterator[Setting]:
        hints = get_type_hints(self._kind, include_extras=True)
        for entry in fields(self._kind):
            kind, about = get_args(hints[entry.name])[:2]
            variable = self._prefix + entry.name.upper()
            yield Setting(entry.name, variable, kind, _text(entry.default), about, not entry.repr)

    def _unknown(self, environ: Mapping[str, str]) -> Iterator[str]:
        known = {row.variable for row in self.rows}
        for variable in environ:
            if variable.startswith(self._prefix) and variable not in known | self._others:
                near = difflib.get_close_matches(variable, known, n=1, cutoff=0.88)
                if near:
                    yield f"{variable}: no such setting; {near[0]} is meant?"
                elif self._closed:
                    yield f"{variable}: no such setting"

    def _convert(self, kind: Any, about: About, text: str) -> object:
        if get_origin(kind) is tuple:
            part = get_args(kind)[0]
            return tuple(self._convert(part, about, word.strip()) for word in text.split(",") if word.strip())
        if kind in self._readers:
            return self._readers[kind](text, about)
        if kind in (Path, Path | None):
            if not text and kind is Path:
                raise ValueError("a path is needed")
            return Path(text) if text else None
        if kind in (int, float):
            return _number(kind, about, text)
        if about.choices and text.lower() not in about.choices:
            raise ValueError(f"accepted: {', '.join(about.choices)}")
        return text.lower() if about.choices else text


def lines_of(text: str) -> dict[str, str]:
    """The variables of a file of settings, as systemd reads them (systemd.exec(5), EnvironmentFile)."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", ";")):
            value = value.strip()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            found[name.strip()] = value[1:-1] if quoted else value
    return found


def _number(kind: type[int] | type[float], about: About, text: str) -> int | float:
    low, high = about.low or 0, about.high or math.inf
    whole = " whole" if kind is int else ""
    accepted = f"accepted: a{whole} number of {about.unit} from {low:.15g} to {high:.15g}"
    try:
        number = kind(text)
    except ValueError:
        raise ValueError(accepted) from None
    if not low <= number <= high:
        raise ValueError(accepted)
    return number


def _text(value: object) -> str:
    """A value as it would be written in the environment."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
