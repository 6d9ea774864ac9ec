"""Typed reading of YAML nodes that keeps on after a mistake, so that all mistakes of a file come out at once.

Nodes are composed, never constructed: a node has its line and column, and no tag can make an object.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from itertools import islice
from typing import Any, Final

import yaml

from lark_common.errors import Mistake
from lark_common.runs import Network
from lark_controller.policies import predicate
from lark_controller.policies.rates import ACCEPTED_MEGABITS, megabits

MAX_BYTES: Final = 1 << 18
MAX_ALIASES: Final = 64
MAX_DIRECTIVES: Final = 16
MAX_DEPTH: Final = 32
MAX_VALUES: Final = 100_000
MAX_ITEMS: Final = 4096
MAX_MISTAKES: Final = 1000
# Of a name or a list of names in a mistake, as much as is read.
_SHOWN: Final = 60
_NAMES_SHOWN: Final = 30

_STR: Final = "tag:yaml.org,2002:str"
_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"
_BOOL: Final = "tag:yaml.org,2002:bool"
_NULL: Final = "tag:yaml.org,2002:null"

# At the beginning of a line, however the one before ends. libyaml compares each directive with all before it, in one
# step in which no other thread runs.
_DIRECTIVE: Final = re.compile(r"(?:\A|[\n\r\x85\u2028\u2029])\ufeff?%")

# Line breaks of YAML that editors, terminals and diffs do not show as such, and characters that show a line in another
# order: what follows one in a comment may be in force, and looks as if it were not.
_UNSEEN: Final = re.compile("\r(?!\n)|[\x85\u2028\u2029\u202a-\u202e\u2066-\u2069]")

MAC: Final = r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}"


def _loader() -> Any:
    """The loader of YAML: events of libyaml where PyYAML has it, at a tenth of the time, composed by Python, so that
    other threads run meanwhile."""
    if not yaml.__with_libyaml__:
        return yaml.SafeLoader
    parser: Any = vars(yaml.cyaml)["CParser"]

    def begin(self: Any, stream: str) -> None:
        parser.__init__(self, stream)
        yaml.composer.Composer.__init__(self)
        yaml.resolver.Resolver.__init__(self)

    return type("Loader", (yaml.composer.Composer, parser, yaml.resolver.Resolver), {"__init__": begin})


_LOADER: Final = _loader()


class FileEntry:
    """A node of the file with its place: where it stands, its key path, and where mistakes are noted."""

    def __init__(self, node: yaml.Node, path: str, mistakes: list[Mistake], key: yaml.Node | None = None) -> None:
        self.node = node
        self.path = path
        self._mistakes = mistakes
        mark = (key if key is not None and not isinstance(node, yaml.ScalarNode) else node).start_mark
        self.line: int = mark.line + 1
        self.column: int = mark.column + 1

    def mistake(self, problem: str, accepted: str = "") -> None:
        """Note a mistake at this place; those beyond :data:`MAX_MISTAKES` are not kept."""
        if len(self._mistakes) < MAX_MISTAKES:
            self._mistakes.append(Mistake(self.line, self.column, self.path, problem, accepted))

    def _child(self, node: yaml.Node, path: str, key: yaml.Node | None = None) -> FileEntry:
        return FileEntry(node, path, self._mistakes, key)

    @property
    def is_mapping(self) -> bool:
        """True for a mapping."""
        return isinstance(self.node, yaml.MappingNode)

    @property
    def is_null(self) -> bool:
        """True where nothing stands after the key."""
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag == _NULL

    @property
    def is_empty(self) -> bool:
        """True for an empty list, and where nothing stands after the key."""
        return self.is_null or (isinstance(self.node, yaml.SequenceNode) and not self.node.value)

    @property
    def is_text(self) -> bool:
        """True for a string."""
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag == _STR

    def mapping(self, keys: Iterable[str] | None, required: Iterable[str] = ()) -> dict[str, FileEntry]:
        """The members of a mapping, in file order; ``keys`` are those that are accepted (None: any name)."""
        known = None if keys is None else tuple(keys)
        expected = "a mapping" if known is None else f"a mapping with {', '.join(known)}"
        if not isinstance(self.node, yaml.MappingNode):
            self.mistake(f"{self._shown()} where a mapping is expected", expected)
            return {}
        members: dict[str, FileEntry] = {}
        for key, node in self.node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            # This path is part of every path below.
            shown = _shortened(name)
            place = self._child(key, f"{self.path}.{shown}" if self.path and name else shown or self.path)
            if not isinstance(key, yaml.ScalarNode) or key.tag != _STR:
                place.mistake("a key that is not a string", "a name (in quotes where it looks like a number)")
            elif name in members:
                place.mistake(f"{shown} stands twice, first in line {members[name].line}", "each key once")
            elif known is not None and name not in known:
                place.mistake(f"unknown key {shown}{_near(name, known)}", ", ".join(known))
            else:
                members[name] = self._child(node, place.path, key)
            if len(self._mistakes) >= MAX_MISTAKES:
                break
        for name in required:
            if name not in members:
                self.mistake(f"{name} is missing", expected)
        return members

    def items(self, most: int = MAX_ITEMS) -> list[FileEntry]:
        """The items of a list of at most ``most``; an empty value is an empty list."""
        if self.is_null:
            return []
        if not isinstance(self.node, yaml.SequenceNode):
            self.mistake(f"{self._shown()} where a list is expected", "a list")
            return []
        if len(self.node.value) > most:
            self.mistake(f"a list of {len(self.node.value)}", f"at most {most} entries")
            return []
        return [self._child(node, f"{self.path}[{index}]") for index, node in enumerate(self.node.value)]

    def text(self, accepted: str, pattern: str = r".+") -> str | None:
        """A string that matches ``pattern`` as a whole."""
        if not isinstance(self.node, yaml.ScalarNode):
            self.mistake(f"{self._shown()} where a string is expected", accepted)
            return None
        value = str(self.node.value)
        if self.node.tag != _STR:
            quotes = "; write it in quotes" if self.node.tag in (_INT, _FLOAT) else ""
            self.mistake(f"{self._shown()} is not a string{quotes}", accepted)
            return None
        if not re.fullmatch(pattern, value):
            self.mistake(f"{_shortened(value)!r} is not accepted", accepted)
            return None
        return value

    def choice(self, choices: tuple[str, ...] | frozenset[str], what: str = "") -> str | None:
        """One of ``choices``."""
        value = self.text(self._accepted(choices, what))
        if value is not None and value not in choices:
            self.mistake(f"{_shortened(value)} is not accepted{_near(value, choices)}", self._accepted(choices, what))
            return None
        return value

    @staticmethod
    def _accepted(choices: tuple[str, ...] | frozenset[str], what: str) -> str:
        names = _listed(choices)
        return f"{what}: {names}" if what else names

    def integer(self, low: int, high: int) -> int | None:
        """An integer from ``low`` to ``high``, in decimal."""
        accepted = f"an integer from {low} to {high}"
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag != _INT:
            self.mistake(f"{self._shown()} is not an integer", accepted)
            return None
        text = str(self.node.value)
        if not re.fullmatch(r"0|-?[1-9][0-9]{0,18}", text) or not low <= int(text) <= high:
            self.mistake(f"{text} is not accepted", accepted)
            return None
        return int(text)

    def boolean(self) -> bool | None:
        """True or false."""
        if isinstance(self.node, yaml.ScalarNode) and self.node.tag == _BOOL:
            return str(self.node.value).lower() in ("true", "yes", "on")
        self.mistake(f"{self._shown()} is not a boolean", "true, false")
        return None

    def megabits(self) -> float | None:
        """Megabits, or megabits a second: a plain number, or one with kbit, Mbit or Gbit."""
        value = None
        if isinstance(self.node, yaml.ScalarNode) and self.node.tag in (_STR, _INT, _FLOAT):
            value = megabits(str(self.node.value))
        if value is None:
            self.mistake(f"{self._shown()} is not a rate", ACCEPTED_MEGABITS)
        return value

    def network(self, hosts: bool = False) -> Network | None:
        """A network ``address/length``; with ``hosts`` a single address is one, too."""
        accepted = "a network such as 10.64.0.0/16 or 2001:db8::/32" + (", or an address" if hosts else "")
        text = self.text(accepted)
        if text is None:
            return None
        try:
            if "/" not in text:
                address = ip_address(text)
                if hosts and "%" not in text:
                    return ip_network(address)
                self.mistake(f"{text} has no prefix length", accepted)
                return None
            loose: IPv4Network | IPv6Network = ip_network(text, strict=False)
        except ValueError:
            self.mistake(f"{text!r} is not a network", accepted)
            return None
        if "%" in text or not text.partition("/")[2].isdigit():
            self.mistake(f"{text!r} is not a network", accepted)
            return None
        if loose.network_address != ip_address(text.partition("/")[0]):
            self.mistake(f"{text} has bits set behind its prefix length; the network is {loose}", str(loose))
            return None
        return loose

    def predicate(self) -> str | None:
        """A ClassAd expression that is true or not, as its text."""
        if isinstance(self.node, yaml.ScalarNode) and self.node.tag == _BOOL:
            return "true" if self.boolean() else "false"
        accepted = "a ClassAd expression in quotes, such as 'Owner == \"bob\"'"
        return self._checked(self.text(accepted, r"(?s).+"), predicate.problem, accepted)

    def expression(self) -> str | None:
        """A ClassAd expression whose value is used, as its text."""
        accepted = "an attribute or a ClassAd expression, such as Owner"
        return self._checked(self.text(accepted, r"(?s).+"), predicate.expression_problem, accepted)

    def _checked(self, text: str | None, check: Callable[[str], str], accepted: str) -> str | None:
        if text is None:
            return None
        problem = check(text)
        if problem:
            self.mistake(problem, accepted)
            return None
        return text.strip()

    def _shown(self) -> str:
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        if isinstance(self.node, yaml.SequenceNode):
            return "a list"
        if self.is_null:
            return "nothing"
        return repr(_shortened(str(self.node.value)))


def some(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(map(_shortened, names[:_NAMES_SHOWN])) + more


@lru_cache(maxsize=16)
def _listed(choices: tuple[str, ...] | frozenset[str]) -> str:
    """Choices in a sentence; the names of ports stand in the mistakes of many rules."""
    return some(choices if isinstance(choices, tuple) else sorted(choices)) if choices else "none is declared"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _near(name: str, known: Collection[str]) -> str:
    # The comparison costs as much as both are long, for each of them.
    near = difflib.get_close_matches(name, known, 1, 0.6) if len(name) <= _SHOWN and len(known) <= _SHOWN else []
    return f" (did you mean {near[0]}?)" if near else ""


def unseen(text: str) -> Mistake | None:
    """The first character of a text that ends or reorders a line unseen."""
    found = _UNSEEN.search(text)
    if found is None:
        return None
    line, column = _place(text, found.start())
    character = f"U+{ord(found.group()):04X}"
    problem = f"column {column}: a character that ends a line, or changes how it is shown, unseen ({character})"
    return Mistake(line, column, "", problem, 'an escape inside double quotes, such as "\\u2028", or no such character')


def compose(text: str, mistakes: list[Mistake], *, stored: bool = False) -> yaml.Node | None:
    """The root node of a YAML text; None, with the mistake noted, where it is not one YAML document. Characters that
    nobody sees are accepted in one that is ``stored``: it was accepted before they were refused."""
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        mistakes.append(Mistake(1, 1, "", "the file is too large", f"at most {MAX_BYTES} bytes"))
        return None
    strange = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if strange is not None:
        problem = f"a character that YAML does not allow (U+{ord(strange.group()):04X})"
        mistakes.append(Mistake(*_place(text, strange.start()), "", problem, "printable text"))
        return None
    hidden = None if stored else unseen(text)
    if hidden is not None:
        mistakes.append(hidden)
        return None
    beyond = next(islice(_DIRECTIVE.finditer(text), MAX_DIRECTIVES, None), None)
    if beyond is not None:
        accepted = f"at most {MAX_DIRECTIVES} lines that begin with %"
        mistakes.append(Mistake(*_place(text, beyond.end() - 1), "", "too many directives", accepted))
        return None
    try:
        excess = _excess(text)
        if excess is not None:
            mistakes.append(excess)
            return None
        return yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        mistakes.append(Mistake(line, column, "", f"not YAML: {error.problem or error.context}", "one YAML document"))
    except yaml.YAMLError as error:
        mistakes.append(Mistake(1, 1, "", f"not YAML: {error}", "one YAML document"))
    return None


def _place(text: str, at: int) -> tuple[int, int]:
    """Line and column of a character."""
    before = text[:at]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _excess(text: str) -> Mistake | None:
    """The reason why a text would take too long or too much memory to compose, found event by event."""
    aliases = depth = values = 0
    for event in yaml.parse(text, Loader=_LOADER):
        aliases += isinstance(event, yaml.AliasEvent)
        values += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        mark = event.start_mark
        at = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        if aliases > MAX_ALIASES:
            return Mistake(*at, "", "too many aliases", f"at most {MAX_ALIASES} aliases")
        if values > MAX_VALUES:
            return Mistake(*at, "", "too many values", f"at most {MAX_VALUES} keys and values")
        if depth > MAX_DEPTH:
            return Mistake(*at, "", "nested too deeply", f"at most {MAX_DEPTH} levels")
    return None
