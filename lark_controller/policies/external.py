"""The section ``external``: pools of external addresses, and which jobs may have one, on what ports, for how long."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from lark_common.runs import Network
from lark_controller.jobs import external_names
from lark_controller.jobs.external import ACCEPTED, MOST_ADDRESSES, Opening, openings, size
from lark_controller.jobs.job import Facts
from lark_controller.policies.cover import Cover
from lark_controller.policies.model import ExternalRule, ExternalSpec, Policy, WithoutExternal
from lark_controller.policies.predicate import ads_of, holds
from lark_controller.policies.yaml_nodes import FileEntry

KEYS: Final = ("pools", "rules", "quarantine", "refused", "zones")
RULE_KEYS: Final = ("when", "pool", "open", "per_user", "per_group", "seconds", "names")
REFUSED: Final = tuple(each.value for each in WithoutExternal)
NAME: Final = r"[A-Za-z0-9_.-]{1,64}"
MAX_COUNT: Final = 65536
# A year, and a day.
MAX_SECONDS: Final = 366 * 86400
MAX_QUARANTINE: Final = 86400
DEFAULT_QUARANTINE: Final = 600
MOST_ZONES: Final = 64


def parse(entry: FileEntry, jobs: tuple[Network, ...]) -> ExternalSpec | None:
    """The section out of its mapping; ``jobs`` are the job networks. None where it is no mapping."""
    fields = entry.mapping(KEYS, required=("pools", "rules"))
    if not entry.is_mapping:
        return None
    pools = _pools(fields["pools"], jobs) if "pools" in fields else {}
    quarantine = fields["quarantine"].integer(0, MAX_QUARANTINE) if "quarantine" in fields else None
    rest = DEFAULT_QUARANTINE if quarantine is None else quarantine
    zones = _zones(fields["zones"], rest) if "zones" in fields else {}
    rules: list[ExternalRule] = []
    for item in fields["rules"].items() if "rules" in fields else ():
        rule = _rule(item, len(rules) + 1, frozenset(pools), zones)
        if rule is not None:
            rules.append(rule)
    refused = fields["refused"].choice(REFUSED) if "refused" in fields else None
    return ExternalSpec(
        MappingProxyType(pools),
        tuple(rules),
        float(rest),
        WithoutExternal(refused or WithoutExternal.HOLD),
        MappingProxyType(zones),
    )


def _pools(entry: FileEntry, jobs: tuple[Network, ...]) -> dict[str, tuple[Network, ...]]:
    taken = Cover()
    for each in jobs:
        taken.add(each)
    found: dict[str, tuple[Network, ...]] = {}
    for name, member in entry.mapping(None).items():
        networks: list[Network] = []
        for item in member.items():
            network = item.network(hosts=True)
            if network is None:
                continue
            if network.version != 4:
                item.mistake(
                    f"{network} is IPv6", "IPv4 networks and addresses: jobs' own IPv6 addresses need no other"
                )
            elif (taker := taken.overlapping(network)) is not None:
                item.mistake(f"{network} overlaps {taker}", "addresses of no job network and of one pool alone")
            else:
                taken.add(network)
                networks.append(network)
        if size(networks) > MOST_ADDRESSES:
            member.mistake(f"a pool of {size(networks)} addresses", f"at most {MOST_ADDRESSES}")
        elif networks:
            found[name] = tuple(networks)
        elif not member.is_mapping and not member.items():
            member.mistake("a pool without addresses", "a list of networks and addresses")
    return found


def _zones(entry: FileEntry, rest: int) -> dict[str, int]:
    """The zones with the seconds that others keep a name, at most as long as an address rests: then no kept name leads
    to another's job."""
    found: dict[str, int] = {}
    members = entry.mapping(None)
    if len(members) > MOST_ZONES:
        entry.mistake(f"{len(members)} zones", f"at most {MOST_ZONES}")
        return found
    for word, member in members.items():
        ttl = member.integer(0, rest)
        try:
            name = external_names.zone(word)
        except ValueError as error:
            member.mistake(str(error))
            continue
        if name in found:
            member.mistake(f"{name} stands twice", "each zone once")
        elif ttl is not None:
            found[name] = ttl
    return found


def _rule(entry: FileEntry, position: int, pools: frozenset[str], zones: dict[str, int]) -> ExternalRule | None:
    fields = entry.mapping(RULE_KEYS, required=("pool", "open"))
    when = fields["when"].predicate() if "when" in fields else None
    pool = fields["pool"].choice(pools, "a pool of external.pools") if "pool" in fields else None
    allowed = _openings(fields["open"]) if "open" in fields else None
    per_user = fields["per_user"].integer(0, MAX_COUNT) if "per_user" in fields else 1
    per_group = fields["per_group"].integer(0, MAX_COUNT) if "per_group" in fields else None
    seconds = fields["seconds"].integer(1, MAX_SECONDS) if "seconds" in fields else None
    names = _names(fields["names"], zones) if "names" in fields else None
    if pool is None or allowed is None or per_user is None:
        return None
    return ExternalRule(position, entry.line, pool, allowed, when, per_user, per_group, seconds, names)


def _names(entry: FileEntry, zones: dict[str, int]) -> external_names.NameForm | None:
    text = entry.text(external_names.ACCEPTED_FORM)
    if text is None:
        return None
    try:
        return external_names.form(text, zones)
    except ValueError as error:
        entry.mistake(*str(error).split("; accepted: ", 1))
        return None


def _openings(entry: FileEntry) -> tuple[Opening, ...] | None:
    words = [word for item in entry.items() if (word := item.text(ACCEPTED)) is not None]
    try:
        found = openings(words)
    except ValueError as error:
        entry.mistake(str(error), ACCEPTED)
        return None
    if not found and not entry.is_null:
        return None
    if not found:
        entry.mistake("nothing is open", ACCEPTED)
        return None
    return found


def rule_of(policy: Policy, facts: Facts) -> ExternalRule | None:
    """The first rule that gives a job with these facts an external address; None: none does."""
    if policy.external is None:
        return None
    ads = ads_of(facts)
    return next((rule for rule in policy.external.rules if holds(rule.when, ads)), None)
