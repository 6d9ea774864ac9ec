"""Generations and roles: their order, the fence, the messages, and the fake switch's roles against the rules."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_protocol
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser

from fake_switch import switchside
from fake_switch.masters import Masters
from lark_controller.switches.fence import Fence, is_later
from lark_controller.switches.openflow import roles
from lark_controller.switches.openflow.oxm import WireError
from lark_controller.switches.openflow.replies import ErrorMessage
from lark_controller.switches.openflow.roles import EQUAL, MASTER, NO_GENERATION, NOCHANGE, SLAVE, Role

GENERATIONS = st.integers(0, (1 << 64) - 1) | st.integers(0, 5) | st.integers((1 << 64) - 5, (1 << 64) - 1)


@pytest.mark.parametrize(
    ("generation", "other", "later"),
    [
        (1, 1, False),
        (2, 1, True),
        (1, 2, False),
        (0, (1 << 64) - 1, True),
        ((1 << 64) - 1, 0, False),
        (NO_GENERATION, 1, False),
        ((1 << 63) - 1, 0, True),
    ],
)
def test_generations_in_order(generation: int, other: int, later: bool) -> None:
    assert is_later(generation, other) is later


@given(GENERATIONS, GENERATIONS)
def test_a_generation_is_later_where_a_switch_refuses_the_other(generation: int, other: int) -> None:
    # ofproto/connmgr.c: (int64_t) (id - ofproto->primary_election_id) < 0 is refused.
    assert is_later(generation, other) == (ctypes.c_int64(other - generation).value < 0)


def test_a_fence_is_shut_once_and_tells_once() -> None:
    said: list[str] = []
    followed: list[int] = []
    fence = Fence(said.append)
    fence.when_shut(lambda: followed.append(1))
    assert not fence.is_shut
    fence.show("first")
    fence.show("second")
    fence.shut("third")
    fence.when_shut(lambda: followed.append(2))
    assert (fence.is_shut, fence.reason, said, followed) == (True, "first", ["first"], [1, 2])


def test_a_fence_that_is_asked_about_first_is_shut_by_whoever_knows() -> None:
    said: list[str] = []
    shown: list[str] = []
    fence = Fence(said.append, shown.append)
    fence.show("a switch says so")
    assert (fence.is_shut, said, shown) == (False, [], ["a switch says so"])
    fence.shut("the database says so")
    fence.show("another switch")
    assert (fence.is_shut, said, shown) == (True, ["the database says so"], ["a switch says so"])


@given(st.sampled_from([NOCHANGE, EQUAL, MASTER, SLAVE]), GENERATIONS)
def test_role_messages_are_os_kens(role: int, generation: int) -> None:
    protocol = ofproto_protocol.ProtocolDesc(version=ofp.OFP_VERSION)
    theirs = parser.OFPRoleRequest(protocol, role, generation)
    theirs.set_xid(7)
    theirs.serialize()
    ours = roles.request(7, role, generation)
    assert ours == bytes(theirs.buf)
    held = Role(role, generation)
    assert switchside.decode_role_request(ours) == held
    assert roles.reply(switchside.role_reply(7, held)) == held
    assert roles.status(switchside.role_status(0, held)) == held


@pytest.mark.parametrize(
    "message",
    [
        switchside.role_status(0, Role(SLAVE, 2))[:-1],
        switchside.role_status(0, Role(SLAVE, 2)) + bytes(8),
        switchside.role_status(0, Role(SLAVE, 2)).replace(b"ONF\0", b"ONFX"),
        switchside.role_status(0, Role(SLAVE, 2)).replace((1911).to_bytes(4), (1912).to_bytes(4)),
    ],
)
def test_other_messages_of_experimenters_are_no_notices(message: bytes) -> None:
    assert roles.status(message) is None


@pytest.mark.parametrize("message", [switchside.role_reply(1, Role(2, 1))[:-1], switchside.features_reply(1, 2, 3)])
def test_what_is_no_role_reply_is_garbage(message: bytes) -> None:
    with pytest.raises(WireError):
        roles.reply(message)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ((11, 0), roles.is_stale),
        ((11, 1), roles.has_none),
        ((1, 1), roles.has_none),
        ((1, 10), roles.is_slave),
        ((11, 2), None),
        ((1, 5), None),
        ((2, 4), None),
    ],
)
def test_errors_that_speak_of_roles(error: tuple[int, int], says: Callable[[ErrorMessage], bool] | None) -> None:
    found = [each for each in (roles.is_stale, roles.has_none, roles.is_slave) if each(ErrorMessage(*error, ""))]
    assert found == ([] if says is None else [says])


class Hearing:
    """A controller's end of a connection: the notices that came."""

    def __init__(self) -> None:
        self.told: list[Role | None] = []

    def send_raw(self, data: bytes) -> None:
        self.told.append(roles.status(data))


ASKED = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([NOCHANGE, EQUAL, MASTER, SLAVE]), GENERATIONS), max_size=30
)


@given(ASKED)
def test_a_fake_switch_has_one_master_at_most_and_its_generation_never_goes_back(
    asked: list[tuple[int, int, int]],
) -> None:
    masters, ends = Masters(), [Hearing(), Hearing(), Hearing()]
    for end in ends:
        masters.opened(end)
    held = [EQUAL] * 3
    for number, role, generation in asked:
        before, told = masters.generation, [len(end.told) for end in ends]
        answer = masters.ask(ends[number], Role(role, generation))
        counts = role in (MASTER, SLAVE)
        if counts and before is not None and is_later(before, generation):
            assert (answer, masters.generation) == (None, before)
        else:
            assert masters.generation == (generation if counts else before)
            for other in range(3):
                if role == MASTER and other != number and held[other] == MASTER:
                    held[other] = SLAVE
                    assert ends[other].told[told[other] :] == [Role(SLAVE, generation)]
            held[number] = held[number] if role == NOCHANGE else role
            assert answer == Role(held[number], NO_GENERATION if masters.generation is None else masters.generation)
        assert held.count(MASTER) <= 1
        for end, role_now in zip(ends, held, strict=True):
            assert masters.refuses(end, ofp.OFPT_FLOW_MOD) == (role_now == SLAVE)
            assert not masters.refuses(end, ofp.OFPT_EXPERIMENTER)
