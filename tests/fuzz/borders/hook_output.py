"""The output of a prepare hook for HTCondor, and of a site's script for the worker service.

The one is made of what users wrote and must be an ad of Lark's own attributes; the other is anybody's text.
"""

from __future__ import annotations

from typing import Final

import classad2

from lark_common.classads.ads import parse_post
from lark_common.classads.text import ad_text, parse_ad
from lark_common.classads.values import NETWORK_TYPES, PREFIXED, Reader
from lark_common.errors import AdError
from lark_common.hook_answer import JobAnswer, lines
from lark_worker.life import network_choice

MAX_BYTES: Final = 2048
DICTIONARY: Final = tuple(
    word.encode()
    for word in (
        "\n", "\r", "\\", '"', '\\"', "\nOwner = ", "LarkVLAN = ", "LarkNetworkType = ", "NetworkType = ", "[ ", " ]",
        "HookStatusCode = 1", "LarkInnerAddressIPv4 = ", '"10.64.0.5"', "regexp(", "TARGET.", "undefined", "#", "\x85",
        "\u2028", "\x00", "\x1b", "'a b'", "{", "}", ";", "/*", "*/",
    )
)  # fmt: skip
_JOB, _MACHINE = (
    parse_ad('Owner = "bob"\nGlobalJobId = "g"\nVLAN = 7\nOutboundConnectivity = true\n')[0],
    parse_ad('Machine = "w"\nNetworkType = ifThenElse(TARGET.OutboundConnectivity, "bridge", "nat")\n')[0],
)


def run(data: bytes) -> None:
    """Answer a hook with ``data``, and take ``data`` from a site's script."""
    text = data.decode("utf-8", "replace")
    _answer(text)
    try:
        _script(text)
    except AdError as error:
        refusal = error
    else:
        return
    assert refusal.reason


def _answer(text: str) -> None:
    job_id, state, reason, address_type, network_type = (text.split("|") + [""] * 5)[:5]
    said = lines(
        JobAnswer(job_id, state, reason, address_type, network_type),
        {"LarkConfirmed": text, "LarkLeaseUntil": len(text)},
    )
    assert said.count("\n") == 7
    for read in (classad2.parseOne(said, classad2.Parser.Old), parse_ad(said)[0]):
        assert sorted(read) == sorted(
            (
                "LarkJobId",
                "LarkState",
                "LarkReason",
                "LarkAddressType",
                "LarkNetworkType",
                "LarkConfirmed",
                "LarkLeaseUntil",
            )
        )
        assert read["LarkLeaseUntil"] == len(text)
        assert all(isinstance(read[name], str) for name in read if name != "LarkLeaseUntil")


def _script(text: str) -> None:
    machine = classad2.ClassAd(repr(_MACHINE))
    for name, value in parse_ad(text)[0].items():
        machine[name] = value
    network_choice._evaluate(machine, _JOB)
    read = Reader(machine, _JOB, "Lark")
    read.choice("NetworkType", NETWORK_TYPES, "none")
    for name in PREFIXED:
        read.value(name)
    parse_post(f'Owner = "b"\nGlobalJobId = "g"\n------\n{ad_text(machine)}'.encode(), "text/plain")
