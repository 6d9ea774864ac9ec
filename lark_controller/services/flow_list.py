"""A switch's flows as a list that operators read: filtered, page by page, each with the policy that asked for it.

What a page costs in words grows with the page, not with the switch: flows are put in order by what they match, and only
those that are shown are written out (all of them where a text is looked for).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from lark_common.errors import NotFoundError
from lark_common.turns import by_portions
from lark_controller.api.switches import FlowFilter, FlowPage, FlowStatus, FlowTable
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import FlowData, FlowKey, Match, Program, Term
from lark_controller.flows.origins import origin
from lark_controller.flows.tables import table_name
from lark_controller.flows.text import actions_text, match_text
from lark_controller.policies.model import SliceKey, SwitchRole
from lark_controller.store.cursors import cursor_of, parts_in
from lark_controller.switches.openflow.dumps import Dump

_Place = tuple[int, int, Match]


@dataclass(frozen=True, slots=True)
class SwitchFlows:
    """The flows of one switch: desired, and (where it was asked) installed; its slices by tag."""

    role: SwitchRole
    desired: Program
    dump: Dump | None
    slices: Mapping[int, SliceKey]


def flows_of(desired: Desired, datapath: int, dump: Dump | None, job: int | None = None) -> SwitchFlows:
    """Collect what :func:`page` needs of the loop's own state; with ``job``, of that job alone."""
    known = desired.switches.get(datapath)
    if job is not None:
        program = desired.build_job(datapath, job)
    else:
        program = desired.build(datapath) if known is not None else Program()
    return SwitchFlows(known.role if known is not None else SwitchRole.EDGE, program, dump, desired.slices_at(datapath))


def page(desired: Desired, here: SwitchFlows, chosen: FlowFilter, cursor: str | None, limit: int) -> FlowPage:
    """A switch's flows in packet order, desired and (where it was asked) installed and foreign.

    May be called on any thread. Raises NotFoundError for a cursor that is none.
    """
    after = None if cursor is None else _place_in(cursor)
    found = _found(here)
    text = chosen.text.lower()
    if text:
        search = _Search(desired, here)
        found = {key: flow for key, flow in by_portions(found.items()) if text in search.words(key, *flow)}
    counts = Counter(key.table for key in found)
    tables = tuple(FlowTable(number, table_name(here.role, number), counts[number]) for number in sorted(counts))
    keys = [key for key in found if chosen.table in (None, key.table)]
    keys.sort(key=_place)
    first = 0 if after is None else bisect_right(keys, after, key=_place)
    shown = keys[first : first + limit]
    lines = tuple(_words(desired, here, key, *found[key]) for key in by_portions(shown))
    return FlowPage(lines, tables, _cursor(shown[-1]) if first + limit < len(keys) else None)


def _found(here: SwitchFlows) -> dict[FlowKey, tuple[FlowData, str]]:
    """Every desired, installed and foreign flow, with its state."""
    dump = here.dump
    found: dict[FlowKey, tuple[FlowData, str]] = {}
    if dump is not None:
        found = {key: (data, "installed") for key, data in dump.program.flows.items()}
        found |= {key: (data, "foreign") for key, data in dump.foreign.items()}
    for key, data in here.desired.flows.items():
        if key not in found:
            found[key] = (data, "missing" if dump is not None else "desired")
    return found


def _words(desired: Desired, here: SwitchFlows, key: FlowKey, data: FlowData, state: str) -> FlowStatus:
    why = origin(desired, here.slices, data)
    packets, size = (None, None) if here.dump is None else here.dump.counters.get(key, (None, None))
    return FlowStatus(
        key.table,
        table_name(here.role, key.table),
        key.priority,
        match_text(key.match),
        actions_text(data),
        f"0x{data.cookie:016x}",
        why.text,
        state,
        why.job,
        packets,
        size,
    )


class _Search:
    """The words of a flow, for a search. Most of a switch's flows differ only in what they match."""

    def __init__(self, desired: Desired, here: SwitchFlows) -> None:
        self._desired = desired
        self._slices = here.slices
        self._rest: dict[FlowData, str] = {}

    def words(self, key: FlowKey, data: FlowData, state: str) -> str:
        rest = self._rest.get(data)
        if rest is None:
            why = origin(self._desired, self._slices, data)
            rest = f" {actions_text(data)} {why.text} {why.job or ''} 0x{data.cookie:016x} ".lower()
            self._rest[data] = rest
        return _match_words(key.match) + rest + state


# A search is repeated while the page is open.
@lru_cache(maxsize=8192)
def _match_words(match: Match) -> str:
    return match_text(match).lower()


def _place(key: FlowKey) -> _Place:
    return key.table, -key.priority, key.match


def _cursor(key: FlowKey) -> str:
    terms = ",".join(f"{term.name}={term.value:x}/{term.mask:x}" for term in key.match)
    return cursor_of(key.table, key.priority, terms)


def _place_in(cursor: str) -> _Place:
    table, priority, terms = parts_in(cursor, (int, int, str))
    try:
        match = tuple(_term(term) for term in terms.split(",") if term)
    except ValueError:
        raise NotFoundError("cursor: not a cursor of this list; take next_cursor of the page before.") from None
    return table, -priority, match


def _term(text: str) -> Term:
    name, _, rest = text.partition("=")
    value, _, mask = rest.partition("/")
    return Term(name, int(value, 16), int(mask, 16))
