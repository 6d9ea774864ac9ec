"""Reads a policy file: YAML text -> Policy, or every mistake in it at once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar, assert_never, get_args

from lark_common.errors import Mistake, PolicyError
from lark_common.runs import Network
from lark_controller.policies import (
    accounting,
    bandwidth,
    block,
    capacity,
    connectivity,
    external,
    group,
    scitags,
    switches,
    topology,
    transfers,
    wan,
)
from lark_controller.policies import slice as slices
from lark_controller.policies.cover import Cover
from lark_controller.policies.decide import needed_attributes
from lark_controller.policies.model import (
    Accounting,
    BandwidthRule,
    BlockRule,
    ConnectivityRule,
    FireflySpec,
    InboundShares,
    Policy,
    RuleKind,
    ScitagsRule,
    SliceRule,
    WanRule,
)
from lark_controller.policies.transfer_rules import NO_CAPACITY, TransferRule
from lark_controller.policies.yaml_nodes import FileEntry, compose

VERSION: Final = 1
# Their values are kept for each job.
MAX_ATTRIBUTES: Final = 256
KEYS: Final = (
    "version",
    "networks",
    "edge",
    "switches",
    "policies",
    "groups",
    "topology",
    "accounting",
    "scitags",
    "external",
    "transfer_capacity",
)
EDGE_KEYS: Final = ("uplinks", "speed", "inbound")
NETWORK_KEYS: Final = ("jobs", "hosts", "local", "block_prefix")
# Each network of hosts is kept out of what is given to jobs address by address.
MOST_HOSTS: Final = 4096
# Groups have a section of their own.
PolicyKind: TypeAlias = Literal[
    RuleKind.BLOCK,
    RuleKind.SLICE,
    RuleKind.WAN,
    RuleKind.CONNECTIVITY,
    RuleKind.BANDWIDTH,
    RuleKind.TRANSFERS,
    RuleKind.SCITAGS,
]
KINDS: Final[tuple[PolicyKind, ...]] = get_args(PolicyKind)
BLOCK_PREFIXES: Final = (26, 122)
# Shorter than this, a block would be a larger network than any pool's.
SHORTEST_BLOCKS: Final = (8, 16)

Rule = TypeVar("Rule", BlockRule, SliceRule, WanRule, ConnectivityRule, BandwidthRule, TransferRule, ScitagsRule)


def load(text: str, source: str = "policy.yaml", *, stored: bool = False) -> Policy:
    """Reads a policy from a file's text. Raises PolicyError with all mistakes, in file order; ``source`` names the
    file. One that is ``stored`` may have characters, and names of switches, that are refused in another."""
    mistakes: list[Mistake] = []
    policy = _read(text, mistakes, stored)
    if policy is not None and not mistakes:
        _check_attributes(policy, mistakes)
    if mistakes or policy is None:
        raise PolicyError(source, tuple(sorted(mistakes, key=lambda each: (each.line, each.column))))
    return policy


def _check_attributes(policy: Policy, mistakes: list[Mistake]) -> None:
    """Note where too much of each job's ads would have to be kept."""
    count = len(frozenset().union(*needed_attributes(policy)))
    if count > MAX_ATTRIBUTES:
        accepted = f"at most {MAX_ATTRIBUTES}"
        mistakes.append(Mistake(1, 1, "policies", f"{count} different attributes in all expressions", accepted))


def _read(text: str, mistakes: list[Mistake], stored: bool) -> Policy | None:
    root = compose(text, mistakes, stored=stored)
    if root is None:
        if not mistakes:
            mistakes.append(Mistake(1, 1, "", "the file is empty", f"at least version: {VERSION}"))
        return None
    top = FileEntry(root, "", mistakes)
    # A key with nothing behind it is a section whose lines are all commented out.
    fields = {
        name: entry
        for name, entry in top.mapping(KEYS, required=("version",)).items()
        if name == "version" or not entry.is_null
    }
    if "version" in fields:
        fields["version"].integer(VERSION, VERSION)
    networks = _networks(fields["networks"]) if "networks" in fields else Networks()
    uplinks: tuple[str, ...] = switches.DEFAULT_UPLINKS
    speed, inbound = None, InboundShares.SPLIT
    if "edge" in fields:
        edge = fields["edge"].mapping(EDGE_KEYS)
        if "uplinks" in edge:
            uplinks = switches.uplinks(edge["uplinks"])
        speed = edge["speed"].megabits() if "speed" in edge else None
        chosen = edge["inbound"].choice(tuple(InboundShares)) if "inbound" in edge else None
        inbound = InboundShares(chosen) if chosen else inbound
    declared = switches.parse(fields["switches"], stored=stored) if "switches" in fields else {}
    ports = switches.wan_ports(declared)
    named = fields["groups"].mapping(None) if "groups" in fields else {}
    rules = _rules(fields["policies"], ports, frozenset(named)) if "policies" in fields else Rules()
    groups = []
    for name, entry in named.items():
        spec = group.parse(name, entry, ports)
        if spec is not None:
            groups.append((spec, entry))
    if not mistakes:
        group.check_rates(groups, declared)
    numbered = group.number(groups)
    return Policy(
        text=text,
        digest=hashlib.sha256(text.encode("utf-8")).hexdigest(),
        job_networks=networks.jobs,
        hosts=networks.hosts,
        local_networks=networks.local,
        edge_uplinks=uplinks,
        edge_speed=speed,
        edge_inbound=inbound,
        block_prefixes=networks.blocks,
        switches=MappingProxyType(declared),
        switch_words=switches.words(declared),
        blocks=tuple(rules.blocks),
        slices=tuple(rules.slices),
        wans=tuple(rules.wans),
        connectivities=tuple(rules.connectivities),
        bandwidths=tuple(rules.bandwidths),
        transfers=tuple(rules.transfers),
        groups=numbered,
        accounting=accounting.parse(fields["accounting"]) if "accounting" in fields else Accounting.ALL,
        topology=topology.parse(fields["topology"], declared) if "topology" in fields else None,
        scitags=tuple(rules.scitags),
        fireflies=scitags.parse_section(fields["scitags"]) if "scitags" in fields else FireflySpec(),
        external=external.parse(fields["external"], networks.jobs, declared) if "external" in fields else None,
        transfer_capacity=(
            capacity.parse(fields["transfer_capacity"], frozenset(named))
            if "transfer_capacity" in fields
            else NO_CAPACITY
        ),
        transfer_marks=transfers.marks(rules.steered, numbered, networks.has_local),
    )


@dataclass(slots=True)
class Rules:
    """The rules of each kind, while a file is read."""

    blocks: list[BlockRule] = field(default_factory=list)
    slices: list[SliceRule] = field(default_factory=list)
    wans: list[WanRule] = field(default_factory=list)
    connectivities: list[ConnectivityRule] = field(default_factory=list)
    bandwidths: list[BandwidthRule] = field(default_factory=list)
    transfers: list[TransferRule] = field(default_factory=list)
    # Those with a WAN port, and their mappings.
    steered: list[tuple[TransferRule, FileEntry]] = field(default_factory=list)
    scitags: list[ScitagsRule] = field(default_factory=list)


def _rules(entry: FileEntry, ports: frozenset[str], groups: frozenset[str]) -> Rules:
    rules = Rules()
    counts = dict.fromkeys(KINDS, 0)
    for item in entry.items():
        members = item.mapping(KINDS)
        # An unknown kind has been noted by now.
        if len(members) > 1 or (item.is_mapping and not item.node.value):
            item.mistake(f"a rule with {len(members)} kinds", f"one of {', '.join(KINDS)}")
        for kind in KINDS:
            if (member := members.get(kind)) is not None:
                counts[kind] += 1
                _parse(rules, kind, member, counts[kind], ports, groups)
    return rules


def _parse(
    rules: Rules, kind: PolicyKind, member: FileEntry, position: int, ports: frozenset[str], groups: frozenset[str]
) -> None:
    """Take in one rule; mistakes are noted."""
    match kind:
        case RuleKind.BLOCK:
            _keep(rules.blocks, block.parse(member, position))
        case RuleKind.SLICE:
            _keep(rules.slices, slices.parse(member, position))
        case RuleKind.WAN:
            _keep(rules.wans, wan.parse(member, position, ports))
        case RuleKind.CONNECTIVITY:
            _keep(rules.connectivities, connectivity.parse(member, position))
        case RuleKind.BANDWIDTH:
            _keep(rules.bandwidths, bandwidth.parse(member, position))
        case RuleKind.TRANSFERS:
            rule = transfers.parse(member, position, groups, ports)
            _keep(rules.transfers, rule)
            rules.steered += [(rule, member)] if rule is not None and rule.port is not None else []
        case RuleKind.SCITAGS:
            _keep(rules.scitags, scitags.parse(member, position))
        case _:
            assert_never(kind)


def _keep(rules: list[Rule], rule: Rule | None) -> None:
    if rule is not None:
        rules.append(rule)


class Networks(NamedTuple):
    """The section ``networks``."""

    jobs: tuple[Network, ...] = ()
    hosts: tuple[Network, ...] = ()
    local: tuple[Network, ...] = ()
    blocks: tuple[int, int] = BLOCK_PREFIXES
    has_local: bool = False


def _networks(entry: FileEntry) -> Networks:
    fields = entry.mapping(NETWORK_KEYS)
    jobs = Cover()
    for item in fields["jobs"].items() if "jobs" in fields else ():
        network = item.network()
        if network is None:
            continue
        other = jobs.overlapping(network)
        if other is not None:
            item.mistake(f"{network} overlaps {other}", "job networks that do not overlap")
        else:
            jobs.add(network)
    local = Cover()
    for item in fields["local"].items() if "local" in fields else ():
        network = item.network()
        if network is not None:
            local.add(network)
    # Job networks are never the WAN.
    for network in jobs.networks:
        if not local.contains(network):
            local.add(network)
    prefixes = _prefixes(fields["block_prefix"], jobs.networks) if "block_prefix" in fields else _fitting(jobs.networks)
    hosts = _hosts(fields["hosts"], jobs) if "hosts" in fields else ()
    return Networks(jobs.networks, hosts, local.networks, prefixes, "local" in fields)


def _hosts(entry: FileEntry, jobs: Cover) -> tuple[Network, ...]:
    """Addresses inside the job networks that are no job's."""
    found = []
    for item in entry.items():
        network = item.network(hosts=True)
        if network is None:
            continue
        if not jobs.contains(network):
            item.mistake(f"{network} is in no job network", "addresses inside networks.jobs that are no job's")
        elif network.num_addresses > MOST_HOSTS:
            item.mistake(f"{network} has {network.num_addresses} addresses", f"at most {MOST_HOSTS} in one entry")
        else:
            found.append(network)
    return tuple(dict.fromkeys(found))


def _fitting(jobs: Sequence[Network]) -> tuple[int, int]:
    """The default block sizes, smaller where a job network is smaller than a block."""
    longest = [max([each.prefixlen for each in jobs if each.version == version], default=0) for version in (4, 6)]
    return max(BLOCK_PREFIXES[0], longest[0]), max(BLOCK_PREFIXES[1], longest[1])


def _prefixes(entry: FileEntry, jobs: Sequence[Network]) -> tuple[int, int]:
    prefixes = list(_fitting(jobs))
    for key, member in entry.mapping(("ipv4", "ipv6")).items():
        index, version, longest = (0, 4, 32) if key == "ipv4" else (1, 6, 128)
        prefix = member.integer(SHORTEST_BLOCKS[index], longest)
        if prefix is None:
            continue
        smaller = [network for network in jobs if network.version == version and network.prefixlen > prefix]
        if smaller:
            member.mistake(
                f"a block /{prefix} is larger than job network {smaller[0]}", f"{smaller[0].prefixlen} or more"
            )
        prefixes[index] = prefix
    return prefixes[0], prefixes[1]
