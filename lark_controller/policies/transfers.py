"""Transfers: how fast HTCondor moves a job's files on its worker, in which group's queue, and whether at all."""

from __future__ import annotations

from typing import Final

import yaml

from lark_controller.policies.model import Because, RuleKind, TransferTerms
from lark_controller.policies.predicate import Ads, holds, values_met
from lark_controller.policies.transfer_rules import TransferRule
from lark_controller.policies.yaml_nodes import FileEntry

RATES: Final = ("rate", "group_rate", "access_point_rate")
KEYS = ("when", "group", *RATES, "block")
# Mb/s. The kernel's limits (nft(8)) take no more than some 147 Gb/s, and a limit below a packet a second is none.
MOST_RATE: Final = 100_000.0
LEAST_RATE: Final = 0.1
# What a rule cannot have, with what there is in its place.
_REFUSED: Final = {
    "port": (
        "a WAN port: transfers leave by the worker's own address, which shows no core whose they are",
        "no port: the site's routers choose by which they leave",
    ),
    "ceiling": ("a ceiling, which is a group's on the WAN: a rule of transfers limits on workers", "rate, group_rate"),
    "guarantee": (
        "a guarantee: the worker has no figures of the paths of its own traffic",
        "guarantee of the group that group names",
    ),
}


def parse(entry: FileEntry, position: int, groups: frozenset[str]) -> TransferRule | None:
    """A rule of transfers out of its mapping, where the policy has these ``groups``; None, with the mistakes noted,
    where there is none."""
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
    when = fields["when"].predicate() if "when" in fields else None
    return TransferRule(position, entry.line, when, group, block=blocked, **rates)


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
            terms = TransferTerms(queue, rule.rate, rule.block, rule.group_rate, rule.access_point_rate)
            return terms, because
    return None, None
