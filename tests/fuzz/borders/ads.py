"""The ads of a post: accepted whole, or refused in words (AdError); accepted ads read back from their text."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lark_common.classads.ads import JobAd, MachineAd, parse_post
from lark_common.errors import AdError
from lark_controller.policies import predicate
from lark_controller.policies.facts import facts
from tests.fixtures.stored_ads import reparse

MAX_BYTES: Final = 4096
DICTIONARY: Final = tuple(
    word.encode()
    for word in (
        "\n------\n", "Owner = ", "GlobalJobId = ", "Machine = ", "Name = ", "RequestBandwidth = ",
        "InboundConnectivity = ", "OutboundConnectivity = ", "NetworkType = ", "AddressType = ", "LarkVLAN = ",
        "LarkInnerAddressIPv4 = ", '"10.64.0.5"', '"bob"', "TARGET.", "MY.", "ifThenElse(", "strcat(", "regexp(",
        "replaceAll(", "userHome(", "eval(", "stringListMember(", "undefined", "error", "=?=", "=!=", "&&", "||", "?:",
        "[ ", "; ", " ]", "{", "}", '\\"', "'a b'", "9223372036854775807", "1e300",
        'MY["', '"]', "CurrentTime", "toplevel", "parent", "absTime(-1)", 'substr("é", 0, 1)', "split(", "Site = ",
        '"/Expr(', ')/"',
        '{"job_ad": ', '"machine_ad": ',
    )
)  # fmt: skip


_NAMES: Final = frozenset({"site", "owner", "jobprio"}), frozenset({"site", "machine"})


def run(data: bytes) -> None:
    """Post ``data``, as text and, where it begins like it, as JSON."""
    media = "application/json" if data.startswith(b"{") else "text/plain"
    try:
        job, machine = parse_post(data, media)
    except AdError as error:
        refusal = error
    else:
        # What a store keeps is read back after a restart: the same decisions, and from then on the same text. (Old
        # syntax rounds numbers to 15 digits.)
        predicate.ads_of(facts(job, machine, _NAMES))
        again = reparse(job.text, machine.text)
        assert _decided(*again) == _decided(job, machine)
        third = reparse(again[0].text, again[1].text)
        assert [ad.text for ad in third] == [ad.text for ad in again]
        return
    assert refusal.reason
    str(refusal).encode()


def _decided(job: JobAd, machine: MachineAd) -> tuple[JobAd, MachineAd]:
    """The ads' content, without what rounding may change."""
    return replace(job, text="", bandwidth=None), replace(machine, text="", available_bandwidth=None)
