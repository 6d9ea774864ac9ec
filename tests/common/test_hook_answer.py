"""The lines of an answer are read by HTCondor, and pass the hook, as they were meant."""

from __future__ import annotations

from ipaddress import ip_address

import classad2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_common.hook_answer import JobAnswer, attribute_lines, lines, quoted
from tests.fixtures.hook import Hook, StandIn, reply

JOB = JobAnswer(
    "0123456789abcdef", "pending", "", "static", "nat", [ip_address("10.64.0.7"), ip_address("2001:db8::7")]
)


def read(text: str) -> dict[str, object]:
    return dict(classad2.parseOne(text, classad2.ParserType.Old).items())


def test_a_job_is_read_with_all_its_attributes() -> None:
    assert read(lines(JOB, {"LarkLeaseUntil": 1700000000})) == {
        "LarkJobId": "0123456789abcdef",
        "LarkState": "pending",
        "LarkReason": "",
        "LarkAddressType": "static",
        "LarkNetworkType": "nat",
        "LarkInnerAddressIPv4": "10.64.0.7",
        "LarkInnerAddressIPv6": "2001:db8::7",
        "LarkLeaseUntil": 1700000000,
    }


@given(st.text())
def test_whatever_a_reason_says_it_is_one_string_on_one_line(reason: str) -> None:
    text = attribute_lines({"Before": 1, "LarkReason": reason, "After": 2})
    assert len(text.splitlines()) == 3
    found = read(text)
    assert (found["Before"], found["After"]) == (1, 2)
    assert isinstance(found["LarkReason"], str)


@pytest.mark.parametrize("reason", ['port "eth0" is "away"', 'ends with "', '"', "plain", "it's"])
def test_quotes_arrive_as_they_were(reason: str) -> None:
    assert read(f"A = {quoted(reason)}\n")["A"] == reason


def test_breaks_and_backslashes_are_written_as_the_hook_writes_them() -> None:
    assert (
        read(f"A = {quoted('two' + chr(10) + ' lines' + chr(7) + chr(92) + 'n' + chr(92))}\n")["A"] == "two lines /n/"
    )


def test_the_hook_passes_such_lines_on(hook: Hook, stand_in: StandIn) -> None:
    answer = lines(JOB._replace(reason='ovs\\br0: "eth0"\tis away\\'))
    stand_in.answers = [reply(201, answer)]
    assert hook.run("start", url=stand_in.url).ad["LarkReason"] == 'ovs/br0: "eth0" is away/'
