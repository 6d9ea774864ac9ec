"""A switch's flows page by page: the pages together are the whole list, whatever is chosen and wherever it is cut."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.population import jobs, policy_text, switches
from lark_common.errors import NotFoundError
from lark_controller.api.switches import FlowFilter, FlowStatus
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import FlowData, FlowKey, Program, match
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.services.flow_list import flows_of, page
from lark_controller.switches.openflow.dumps import Dump

TEXT = policy_text()
POOL = Desired(load(TEXT))
POOL.set_switch(next(switches(TEXT)))
for _job in itertools.islice(jobs(4000, 22), 4000):
    POOL.put(_job, Decider(POOL.policy).decide(_job.facts))
DESIRED = POOL.build(1)
FOREIGN = {FlowKey(3, 7, match(eth_type=0x86DD, ipv6_src=0x20010DB8 << 96)): FlowData(5)}
# The switch lacks one flow, and has one of somebody else.
LACKS = min(DESIRED.flows)
HERE = flows_of(
    POOL, 1, Dump(Program({key: data for key, data in DESIRED.flows.items() if key != LACKS}), FOREIGN, {LACKS: (1, 2)})
)


def every(chosen: FlowFilter, limit: int) -> list[FlowStatus]:
    found: list[FlowStatus] = []
    cursor = None
    while True:
        part = page(POOL, HERE, chosen, cursor, limit)
        assert len(part.flows) <= limit
        found += part.flows
        if part.next_cursor is None:
            return found
        assert len(part.flows) == limit
        cursor = part.next_cursor


WHOLE = every(FlowFilter(), 10_000)


def test_the_whole_list_has_what_is_there_what_is_missing_and_what_is_foreign() -> None:
    assert len(WHOLE) == len(DESIRED.flows) + 1
    places = [(flow.table, -flow.priority) for flow in WHOLE]
    assert places == sorted(places)
    states = [flow.state for flow in WHOLE]
    assert (states.count("missing"), states.count("foreign")) == (1, 1)
    assert {flow.state for flow in page(POOL, replace(HERE, dump=None), FlowFilter(), None, 9_999).flows} == {"desired"}


@given(st.integers(1, 60), st.sampled_from(["", "USER021", "nw_src=10.64", "foreign", "no flow has this"]),
       st.none() | st.sampled_from([0, 3, 11, 77]))  # fmt: skip
def test_pages_of_any_size_make_up_the_list(limit: int, text: str, table: int | None) -> None:
    def meant(flow: FlowStatus) -> bool:
        words = (flow.match, flow.actions, flow.origin, flow.state, flow.job or "", flow.cookie)
        return any(text.lower() in each.lower() for each in words)

    chosen = FlowFilter(table=table, text=text)
    assert every(chosen, limit) == [flow for flow in WHOLE if meant(flow) and table in (None, flow.table)]
    tables = page(POOL, HERE, chosen, None, limit).tables
    assert {each.number: each.flows for each in tables} == {
        number: len(list(some))
        for number, some in itertools.groupby(flow.table for flow in WHOLE if meant(flow))
    }  # fmt: skip


def test_a_page_goes_on_behind_a_flow_that_has_gone() -> None:
    first = page(POOL, HERE, FlowFilter(), None, 5)
    gone = replace(
        HERE, desired=Program(), dump=Dump(Program(dict(itertools.islice(DESIRED.flows.items(), 0))), FOREIGN)
    )
    assert [flow.state for flow in page(POOL, gone, FlowFilter(), first.next_cursor, 5).flows] == ["foreign"]


@pytest.mark.parametrize("cursor", ["x", "", "bm8", "WzEsIDIsICJldGhfdHlwZSJd", "WzEsIDIsIDNd"])
def test_a_cursor_that_is_none_is_refused(cursor: str) -> None:
    with pytest.raises(NotFoundError, match="cursor"):
        page(POOL, HERE, FlowFilter(), cursor, 5)
