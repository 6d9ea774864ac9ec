"""Transfers: how fast HTCondor moves a job's files on its worker, in which group's queue, by which WAN port, and
whether at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

import yaml

from lark_controller.policies.group import DEFAULT
from lark_controller.policies.model import MOST_DSCP, Because, GroupSpec, RuleKind
from lark_controller.policies.predicate import Ads, holds, values_met
from lark_controller.policies.transfer_rules import TransferMark, TransferRule, TransferTerms
from lark_controller.policies.yaml_nodes import FileEntry

# The DSCP from which on pairs of a group and a WAN port have theirs.
UPPER: Final = 33
RATES: Final = ("rate", "group_rate", "access_point_rate")
KEYS = ("when", "group", *RATES, "port", "block")
# Mb/s. The kernel's limits (nft(8)) take no more than some 147 Gb/s, and a limit below a packet a second is none.
MOST_RATE: Final = 100_000.0
LEAST_RATE: Final = 0.1
# Keys that a rule cannot have, each with the one in its place.
_REFUSED: Final = {
    "ceiling": ("a ceiling, which is a group's on the WAN: a rule of transfers limits on workers", "rate, group_rate"),
    "guarantee": (
        "a guarantee, which is a group's: what has the group's mark shares it",
        "group: a group with the guarantee, and with when: false if it is for transfers alone",
    ),
}


def parse(
    entry: FileEntry, position: int, groups: frozenset[str], wan_ports: frozenset[str] = frozenset()
) -> TransferRule | None:
    """A rule of transfers out of its mapping, where the policy has these ``groups`` and WAN ports of cores; None, with
    the mistakes noted, where there is none."""
    held = entry.node.value if isinstance(entry.node, yaml.MappingNode) else ()
    refused = {key.value for key, _ in held if isinstance(key, yaml.ScalarNode) and key.value in _REFUSED}
    fields = entry.mapping((*KEYS, *sorted(refused)))
    if not entry.is_mapping:
        return None
    for name in refused & fields.keys():
        fields[name].mistake(*_REFUSED[name])
    blocked = "block" in fields and fields["block"].boolean() is True
    rates = {name: _rate(fields[name], name, blocked) for name in RATES if name in fields}
    group = fields["group"].choice(groups, "a group of the section groups") if "group" in fields else None
    port = fields["port"].choice(wan_ports, "a WAN port of a core switch") if "port" in fields else None
    if "port" in fields and blocked:
        fields["port"].mistake("a WAN port beside block: true, with which nothing passes", "one of port and block")
    when = fields["when"].predicate() if "when" in fields else None
    return TransferRule(position, entry.line, when, group, block=blocked, port=port, **rates)


def marks(
    steered: Sequence[tuple[TransferRule, FileEntry]], groups: Sequence[GroupSpec], has_local: bool
) -> tuple[TransferMark, ...]:
    """A DSCP for each group and WAN port of these rules, with their mappings; mistakes are noted there.

    A core sees nothing else of a transfer: its addresses are the worker's. ``has_local``: the policy names the networks
    that are not the WAN.
    """
    ways: dict[tuple[str, str], tuple[TransferRule, FileEntry]] = {}
    for rule, entry in steered:
        assert rule.port is not None
        named = {each.name: each for each in groups}.get(rule.group or "")
        field = entry.mapping(None)["port"]
        if not has_local:
            field.mistake(
                "a WAN port without networks.local: workers and access points would be outside of the site",
                "networks.local with the networks of workers and access points",
            )
        if named is not None and named.port not in (None, rule.port):
            field.mistake(
                f"port {rule.port}, and group {named.name} is on port {named.port}",
                f"{named.port}, or a group without port",
            )
        for name in _groups_of(rule, groups):
            ways.setdefault((name, rule.port), (rule, field))
    free = set(range(1, MOST_DSCP + 1)) - {each.dscp for each in groups}
    if len(ways) > len(free):
        rule, field = list(ways.values())[len(free)]
        field.mistake(
            f"{len(ways)} pairs of a group and a WAN port of transfers beside {len(groups)} groups; each has a DSCP",
            f"at most {MOST_DSCP} together; a rule with group makes one pair, one without has one for each group",
        )
        return ()
    found = []
    for (name, port), (rule, _) in sorted(ways.items(), key=lambda each: each[0]):
        found.append(TransferMark(name, port, _free(free, name, port), rule.line))
        free.discard(found[-1].dscp)
    return tuple(found)


def _groups_of(rule: TransferRule, groups: Sequence[GroupSpec]) -> Iterator[str]:
    """The groups in which a rule's transfers may be; ``""`` for none."""
    if rule.group is not None:
        yield rule.group
        return
    yield from (each.name for each in groups)
    if not any(each.name == DEFAULT for each in groups):
        yield ""


def _free(free: set[int], group: str, port: str) -> int:
    """The DSCP of a pair: by its names, so that other pairs that come and go leave it as it is as far as can be.

    One of the upper half, since groups have the lowest: while switches go over to a policy with another group, no job
    is steered as transfers are. There an odd one first, since the even ones have meanings of their own elsewhere
    (RFC 2474, section 6).
    """

    def order(dscp: int) -> tuple[bool, bool, bytes]:
        text = f"{group} {port} {dscp}".encode("utf-8", "surrogatepass")
        return dscp < UPPER, dscp % 2 == 0, hashlib.sha256(text).digest()

    return min(free, key=order)


def _rate(field: FileEntry, name: str, blocked: bool) -> float | None:
    rate = field.megabits()
    if rate is not None and not LEAST_RATE <= rate <= MOST_RATE:
        field.mistake(f"a rate of {rate:g} Mb/s", f"{LEAST_RATE:g} to {MOST_RATE:g} Mb/s")
    if blocked:
        field.mistake("a rate beside block: true, with which nothing passes", f"one of {name} and block")
    return rate


def decide(rules: tuple[TransferRule, ...], group: str, ads: Ads) -> tuple[TransferTerms | None, Because | None]:
    """The terms of a job's transfers, where the job is in this ``group``, and the rule that decided; None: no rule is
    about them."""
    for rule in rules:
        if holds(rule.when, ads):
            because = Because(
                RuleKind.TRANSFERS, rule.position, rule.line, rule.when or "true", values_met(rule.when, ads)
            )
            queue = group if rule.group is None else rule.group
            terms = TransferTerms(queue, rule.rate, rule.block, rule.group_rate, rule.access_point_rate, rule.port)
            return terms, because
    return None, None
