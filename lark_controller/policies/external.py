"""The section ``external``: pools of external addresses, and which jobs may have one, on what ports, for how long."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lark_common.classads.text import name_part
from lark_common.runs import Network
from lark_controller.jobs import external_names
from lark_controller.jobs.external import ACCEPTED, MOST_ADDRESSES, Opening, openings, size
from lark_controller.jobs.job import Facts
from lark_controller.policies.cover import Cover
from lark_controller.policies.external_spec import OWN_POOL, ExternalRule, ExternalSpec, PoolPlace, WithoutExternal
from lark_controller.policies.model import Decision, Policy, SwitchRole, SwitchSpec
from lark_controller.policies.predicate import ads_of, holds
from lark_controller.policies.yaml_nodes import FileEntry

KEYS: Final = ("pools", "rules", "quarantine", "refused", "zones")
POOL_KEYS: Final = ("networks", "port", "switch")
RULE_KEYS: Final = ("when", "family", "pool", "open", "per_user", "per_group", "seconds", "names")
FAMILIES: Final = {"ipv4": 4, "ipv6": 6}
REFUSED: Final = tuple(each.value for each in WithoutExternal)
# As many as workers advertise.
MOST_POOLS: Final = 256
MAX_COUNT: Final = 65536
# A year, and a day.
MAX_SECONDS: Final = 366 * 86400
MAX_QUARANTINE: Final = 86400
DEFAULT_QUARANTINE: Final = 600
MOST_ZONES: Final = 64


def parse(
    entry: FileEntry, jobs: tuple[Network, ...], switches: Mapping[int, SwitchSpec] = MappingProxyType({})
) -> ExternalSpec | None:
    """The section out of its mapping; ``jobs`` are the job networks, ``switches`` those declared. None where it is no
    mapping."""
    fields = entry.mapping(KEYS, required=("rules",))
    if not entry.is_mapping:
        return None
    places: dict[str, PoolPlace] = {}
    pools = _pools(fields["pools"], jobs, switches, places) if "pools" in fields else {}
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
        MappingProxyType(places),
        MappingProxyType(zones),
    )


def _pools(
    entry: FileEntry, jobs: tuple[Network, ...], switches: Mapping[int, SwitchSpec], places: dict[str, PoolPlace]
) -> dict[str, tuple[Network, ...]]:
    """The pools of the section; ``places`` gets those that are not at every WAN port."""
    taken = Cover()
    for each in jobs:
        taken.add(each)
    found: dict[str, tuple[Network, ...]] = {}
    # By the attribute of slots' ads that has what is left, of which HTCondor takes capitals for small letters.
    attributes: dict[str, str] = {}
    members = entry.mapping(None)
    if len(members) > MOST_POOLS:
        entry.mistake(f"{len(members)} pools", f"at most {MOST_POOLS}")
        return found
    for name, given in members.items():
        member = given
        if (other := attributes.setdefault(name_part(name).lower(), name)) != name:
            attribute = f"ExternalHeadroom_{name_part(name)}"
            member.mistake(f"slots' ads have one {attribute} for it and {other}", "names with other letters and digits")
            continue
        if name == OWN_POOL:
            member.mistake(f"the name {OWN_POOL} stands for jobs' own IPv6 addresses", "another name")
            continue
        if member.is_mapping:
            fields = member.mapping(POOL_KEYS, required=("networks",))
            if "networks" not in fields:
                continue
            places[name] = _place(fields, switches)
            member = fields["networks"]
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
        elif member.is_empty:
            member.mistake("a pool without addresses", "a list of networks and addresses")
    for name in places.keys() - found.keys():
        del places[name]
    return found


def _place(fields: Mapping[str, FileEntry], switches: Mapping[int, SwitchSpec]) -> PoolPlace:
    cores = {spec.name: spec for spec in switches.values() if spec.role is SwitchRole.CORE}
    switch = fields["switch"].choice(frozenset(cores), "a core switch") if "switch" in fields else None
    chosen = cores.values() if switch is None else [cores[switch]]
    ports = frozenset(name for spec in chosen for name in spec.ports if name.startswith("wan"))
    port = fields["port"].choice(ports, "a WAN port of a core switch") if "port" in fields else None
    return PoolPlace(port, switch)


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
    fields = entry.mapping(RULE_KEYS, required=("open",))
    named = fields["family"].choice(tuple(FAMILIES)) if "family" in fields else "ipv4"
    family = FAMILIES.get(named or "", 4)
    when = fields["when"].predicate() if "when" in fields else None
    named_pools = _rules_pools(entry, fields.get("pool"), family, pools)
    allowed = _openings(fields["open"]) if "open" in fields else None
    per_user = fields["per_user"].integer(0, MAX_COUNT) if "per_user" in fields else 1
    per_group = fields["per_group"].integer(0, MAX_COUNT) if "per_group" in fields else None
    seconds = fields["seconds"].integer(1, MAX_SECONDS) if "seconds" in fields else None
    names = _names(fields["names"], zones) if "names" in fields else None
    if not named_pools or allowed is None or per_user is None:
        return None
    pool, *more = named_pools
    return ExternalRule(
        position, entry.line, pool, allowed, when, per_user, per_group, seconds, family, tuple(more), names
    )


def _rules_pools(entry: FileEntry, named: FileEntry | None, family: int, pools: frozenset[str]) -> list[str]:
    """The pools of a rule, in its order."""
    if family == 6:
        if named is not None:
            named.mistake("a pool of family ipv6", "no pool: jobs' own IPv6 addresses are opened")
        return [OWN_POOL]
    if named is None:
        if entry.is_mapping:
            entry.mistake("pool is missing", "a pool of external.pools, or family: ipv6")
        return []
    members = [named] if named.is_text else named.items()
    chosen = (member.choice(pools, "a pool of external.pools") for member in members)
    return [name for name in chosen if name is not None]


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
    if not found and not entry.is_empty:
        return None
    if not found:
        entry.mistake("nothing is open", ACCEPTED)
        return None
    return found


def rule_of(policy: Policy, facts: Facts, family: int | None = None) -> ExternalRule | None:
    """The first rule that gives a job with these facts an external address; None: none does.

    Without a ``family`` it is one of IPv4, or where none gives that, one of IPv6.
    """
    if policy.external is None:
        return None
    ads = ads_of(facts)
    for version in (4, 6) if family is None else (family,):
        for rule in policy.external.rules:
            if rule.family == version and holds(rule.when, ads):
                return rule
    return None


def leaves_by(policy: Policy, decision: Decision) -> str | None:
    """The WAN port that a job's traffic is steered to; None where it is not."""
    rule = next((each for each in policy.wans if each.position == decision.wan), None)
    return None if rule is None else rule.port


def pool_of(policy: Policy, rule: ExternalRule, decision: Decision) -> str | None:
    """The first pool of a rule that is where a job's traffic leaves; None where none is.

    A pool without a port is everywhere. One with a port is of the jobs that are steered there, or, where no rule steers
    to that port, of those that are steered nowhere: their gateway is there.
    """
    if policy.external is None or rule.family == 6:
        return rule.pool
    port = leaves_by(policy, decision)
    steered = {each.port for each in policy.wans}
    for name in (rule.pool, *rule.more_pools):
        at = policy.external.places.get(name, PoolPlace()).port
        if at is None or at == port or (port is None and at not in steered):
            return name
    return None
