"""A policy's text: taken whole, or every mistake in words; one that is taken decides about any job."""

from __future__ import annotations

from typing import Final

from lark_common.errors import PolicyError
from lark_controller.flows.wan import local_networks
from lark_controller.jobs.job import Facts
from lark_controller.policies.decide import decide
from lark_controller.policies.file import load
from lark_controller.qos.warnings import policy_warnings

MAX_BYTES: Final = 4096
DICTIONARY: Final = tuple(
    word.encode()
    for word in (
        "version: 1\n", "networks:", "jobs:", "hosts:", "local:", "block_prefix:", "edge:", "uplinks:", "speed:",
        "inbound: split", "switches:", "policies:", "groups:", "accounting: all", "topology:", "links:", "block:",
        "slice:", "wan:", "connectivity:", "bandwidth:", "when:", "by:", "action: drop", "except:", "port:",
        "outbound: requested", "mode: guarantee", "ceiling:", "default:", "guarantee:", "between:", "capacity:",
        "datapath:", "role: core", "ports:", "max_rules:", "next_hop:", "10.0.0.0/8", "2001:db8::/32", "250Mbit",
        "'Owner == \"bob\"'", "regexp(\"", "regexps(", "regexpMember(", "stringListMember(", "replaceAll(", "strcat(",
        "TARGET.", "MY.", "undefined", "=?=", "&&", "||", "/* ", " */", "\\\\1", "(a+)+$", "{1,99}", "&a ", "*a",
        "<<: ", "!!str ", "- ", "? ", ": ", "{", "}", "[", "]", "|\n", "%TAG ", "\n---\n", "\t", "\xa0", "\u2028", "\0",
    )
)  # fmt: skip
_TEXT: Final = '"' + "aab, " * 200 + '"'
_FACTS: Final = (
    Facts((), ()),
    Facts(
        (("acctgroup", '"group_cms.prod"'), ("owner", '"bob"'), ("x", _TEXT), ("n", "7"), ("l", '{ 1, "a" }')),
        (("machine", '"w1.example"'), ("x", "error")),
    ),
)


def run(data: bytes) -> None:
    """Read ``data`` as a policy, and have it decide."""
    text = data.decode("utf-8", "replace")
    try:
        policy = load(text)
    except PolicyError as error:
        refusal = error
    else:
        assert load(text) == policy
        policy_warnings(policy)
        local_networks(policy)
        for facts in _FACTS:
            assert decide(facts, policy) == decide(facts, policy)
        return
    assert refusal.mistakes
    for mistake in refusal.mistakes:
        assert mistake.problem
        assert mistake.line >= 1
        assert mistake.column >= 1
    str(refusal).encode()
