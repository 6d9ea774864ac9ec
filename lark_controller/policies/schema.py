"""The JSON Schema of a policy file, for editors; ``etc/policy.schema.json`` is this, written out.

A schema sees shapes. What needs the whole file or the ClassAd language (predicates, overlaps, ports that other keys
name, duplicate datapaths) is reported by :func:`lark_controller.policies.file.load` alone: what ``load`` takes is valid
here, and not the other way round.
"""

from __future__ import annotations

import json
from typing import Any, Final

from lark_common.scitags import MOST_ACTIVITY, MOST_EXPERIMENT
from lark_controller.jobs.external import ACCEPTED
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
from lark_controller.policies.file import EDGE_KEYS, KEYS, NETWORK_KEYS, SHORTEST_BLOCKS, VERSION
from lark_controller.policies.model import GroupControl, InboundShares, SwitchRole
from lark_controller.policies.rates import MEGABITS
from lark_controller.policies.yaml_nodes import MAC

# In ECMA 262, the language of JSON Schema's patterns, there is no flag for "any case".
_UNIT: Final = "([kK][bB][iI][tT]|[mM][bB][iI][tT]|[gG][bB][iI][tT])"
_RATE: Final[dict[str, Any]] = {
    "type": ["number", "string"],
    "exclusiveMinimum": 0,
    "maximum": 1_000_000,
    "pattern": f"^{MEGABITS.replace('(kbit|Mbit|Gbit)', _UNIT)}$",
}
_TRANSFER_RATE: Final[dict[str, Any]] = {**_RATE, "maximum": transfers.MOST_RATE}
_NETWORK: Final[dict[str, Any]] = {"type": "string", "pattern": "^[0-9a-fA-F:.]+/[0-9]{1,3}$"}
_HOST: Final[dict[str, Any]] = {"type": "string", "pattern": "^[0-9a-fA-F:.]+(/[0-9]{1,3})?$"}
_COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": external.MAX_COUNT}
_NAME: Final[dict[str, Any]] = {"type": "string", "minLength": 1}


def _described(schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {**schema, "description": text}


def _record(properties: dict[str, Any], keys: tuple[str, ...], required: tuple[str, ...] = ()) -> dict[str, Any]:
    if set(properties) != set(keys):
        raise ValueError(f"the schema has {sorted(properties)} and the file {sorted(keys)}")
    record: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**record, "required": list(required)} if required else record


def _optional(schema: dict[str, Any]) -> dict[str, Any]:
    """A section whose lines may all be commented out."""
    return {**schema, "type": [schema["type"], "null"]}


def _listed(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": ["array", "null"], "items": items}


def _tag(most: int) -> dict[str, Any]:
    return {"type": ["integer", "string"], "minimum": 1, "maximum": most, "pattern": f"^{scitags.NAME}$"}


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a policy file."""
    predicate = {"type": ["string", "boolean"], "minLength": 1}
    when = _described(predicate, "ClassAd expression over the job ad (MY) and the machine ad (TARGET)")
    port_name = _described({**_NAME, "pattern": f"^{switches.WAN}"}, "a WAN port of a core switch")
    number_or_name = {
        "type": ["integer", "string"],
        "minimum": 1,
        "maximum": switches.MAX_PORT,
        "pattern": f"^{switches.INTERFACE}$",
    }
    speed = _described(_RATE, "of the link, Mb/s or with a unit: 10Gbit")
    port = {
        "anyOf": [
            number_or_name,
            _record(
                {
                    "port": number_or_name,
                    "next_hop": {"type": "string", "pattern": f"^{MAC}$"},
                    "speed": speed,
                    "backup": _described(_NAME, "the WAN port that takes its place while it is down"),
                },
                switches.PORT_KEYS,
                ("port",),
            ),
        ]
    }
    reach = {"enum": list(connectivity.REACHES)}
    rules = {
        "block": _described(_record({"when": when}, block.KEYS, ("when",)), "no traffic at all"),
        "slice": _described(
            _record({"by": _NAME, "when": when}, slices.KEYS, ("by",)), "no traffic between jobs with different values"
        ),
        "wan": {
            **_described(
                _record(
                    {"when": when, "action": {"enum": list(wan.ACTIONS)}, "except": _listed(_HOST), "port": port_name},
                    wan.KEYS,
                ),
                "traffic to and from what is not local",
            ),
            "oneOf": [{"required": ["action"]}, {"required": ["port"]}],
            "dependentSchemas": {"except": {"properties": {"action": {"const": "drop"}}, "required": ["action"]}},
        },
        "connectivity": {
            **_described(
                _record({"inbound": reach, "outbound": reach, "when": when}, connectivity.KEYS),
                "which directions a job may open connections in",
            ),
            "anyOf": [{"required": ["inbound"]}, {"required": ["outbound"]}],
        },
        "bandwidth": _described(
            _record(
                {
                    "when": when,
                    "mode": {"enum": list(bandwidth.MODES)},
                    "default": _described(_RATE, "for jobs that request none"),
                    "maximum": _described(_RATE, "the most that counts of what a job requests"),
                    "ceiling": _described(_RATE, "the most of a guaranteed job, guaranteed and borrowed"),
                },
                bandwidth.KEYS,
            ),
            "what RequestBandwidth means on the worker",
        ),
        "transfers": {
            **_described(
                _record(
                    {
                        "when": when,
                        "group": _described(_NAME, "whose mark they have; without it the job's own"),
                        "rate": _described(_TRANSFER_RATE, "the most of each job in each direction"),
                        "group_rate": _described(_TRANSFER_RATE, "the most of all of the group on one worker"),
                        "access_point_rate": _described(
                            _TRANSFER_RATE, "the most of all of the job's access point on one worker"
                        ),
                        "port": _described(port_name, "the WAN port of a core switch by which they leave"),
                        "block": {"type": "boolean"},
                    },
                    transfers.KEYS,
                ),
                "what HTCondor moves for a job on its worker",
            ),
            "not": {
                "properties": {"block": {"const": True}},
                "required": ["block"],
                "anyOf": [{"required": [name]} for name in (*transfers.RATES, "port")],
            },
        },
        "scitags": _described(
            _record(
                {
                    "experiment": _tag(MOST_EXPERIMENT),
                    "activity": _tag(MOST_ACTIVITY),
                    "requested": _described(
                        {**_listed(_tag(MOST_ACTIVITY)), "maxItems": scitags.MOST_REQUESTED},
                        "activities that a job's ad may ask for (ScitagActivity)",
                    ),
                    "when": when,
                },
                scitags.KEYS,
                ("experiment",),
            ),
            "the mark by which science networks recognise the job's flows",
        ),
    }
    one_rule = {
        "type": "object",
        "properties": rules,
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }
    groups = _record(
        {
            "guarantee": _described(_RATE, "Mb/s, or with a unit: 250Mbit"),
            "ceiling": _described(_RATE, "Mb/s, or with a unit: 1Gbit; at least the guarantee"),
            "burst": _described(_RATE, "megabits, or with a unit; of the meter"),
            "queue": {"type": "integer", "minimum": 0, "maximum": 0xFFFFFFFE},
            "port": port_name,
            "priority": {"type": "integer", "minimum": -1000, "maximum": 1000},
            "when": when,
            "dscp": {"type": "integer", "minimum": 1, "maximum": 63},
        },
        group.KEYS,
    )
    switch = _record(
        {
            "datapath": {"type": "string", "pattern": f"^({switches.DATAPATH})$"},
            "role": {"enum": [each.value for each in SwitchRole]},
            "host": {"type": "string", "pattern": r"^\S+$"},
            "ports": {"type": "object", "additionalProperties": port},
            "max_rules": {"type": "integer", "minimum": 0, "maximum": switches.MAX_RULES},
            "normal": {"enum": ["auto", True, False]},
            "groups_by": _described(
                {"enum": [each.value for each in GroupControl]},
                "how a core or an access point's switch keeps groups to their rates",
            ),
            "ovsdb": {"type": "string", "pattern": f"^({switches.OVSDB})$"},
        },
        switches.KEYS,
        ("datapath", "role"),
    )
    prefixes = {
        "ipv4": {"type": "integer", "minimum": SHORTEST_BLOCKS[0], "maximum": 32},
        "ipv6": {"type": "integer", "minimum": SHORTEST_BLOCKS[1], "maximum": 128},
    }
    networks = _record(
        {
            "jobs": _described(_listed(_NETWORK), "where jobs get addresses"),
            "hosts": _described(_listed(_HOST), "addresses inside job networks that are no job's: gateways, servers"),
            "local": _described(_listed(_NETWORK), "what is not the WAN"),
            "block_prefix": _record(prefixes, ("ipv4", "ipv6")),
        },
        NETWORK_KEYS,
    )
    duplex = {"enum": list(topology.DUPLEXES)}
    node = {"type": "string", "pattern": f"^{topology.NAME}$"}
    link = _record(
        {
            "between": _described(
                {"type": "array", "items": node, "minItems": 2, "maxItems": 2},
                "two switches or hosts; a name that begins with wan is the world outside",
            ),
            "capacity": _described(_RATE, "Mb/s, or with a unit: 10Gbit"),
            "duplex": duplex,
        },
        topology.LINK_KEYS,
        ("between", "capacity"),
    )
    host = _record(
        {
            "switch": _described(node, "the switch that the host hangs on"),
            "capacity": _described(_RATE, "of its access link; without it, AvailBandwidth of the machine ad"),
            "duplex": duplex,
            "addresses": _listed(_HOST),
        },
        topology.HOST_KEYS,
        ("switch",),
    )
    network_links = _record(
        {
            "duplex": _described(duplex, "of links that do not say; half: both directions share the capacity"),
            "reserves": _described({"enum": list(topology.RESERVES)}, "what RequestBandwidth reserves"),
            "refused": _described({"enum": list(topology.REFUSED)}, "what becomes of a job that there is no room for"),
            "links": {"type": "object", "additionalProperties": link},
            "hosts": {"type": "object", "additionalProperties": host},
        },
        topology.KEYS,
    )
    fireflies = _record(
        {
            "collectors": {
                **_listed({"type": "string", "pattern": f"^({scitags.COLLECTOR})$"}),
                "maxItems": scitags.MOST_COLLECTORS,
            },
            "destinations": _described({"type": "boolean"}, "the other end of a flow is a receiver, too"),
            "flows": {"enum": list(scitags.FLOWS)},
            "ongoing": {"type": "integer", "minimum": 0, "maximum": scitags.LONGEST_ONGOING},
            "labels": _described({"type": "boolean"}, "IPv6 packets carry the mark in the flow label"),
            "jobs": _described({"type": "boolean"}, "all this for what jobs send themselves, too"),
        },
        scitags.SECTION_KEYS,
    )
    pool = _described(_listed(_HOST), "external IPv4 addresses")
    placed = _record(
        {
            "networks": pool,
            "port": _described(_NAME, "the WAN port where the addresses are answered for; every one"),
            "switch": _described(_NAME, "the core switch; every one"),
        },
        external.POOL_KEYS,
        ("networks",),
    )
    external_addresses = _record(
        {
            "pools": {
                "type": "object",
                "additionalProperties": {"anyOf": [pool, placed]},
                "maxProperties": external.MOST_POOLS,
            },
            "rules": _listed(
                _record(
                    {
                        "when": when,
                        "family": _described({"enum": list(external.FAMILIES)}, "ipv4; ipv6 opens jobs' own addresses"),
                        "pool": _described(
                            {"anyOf": [_NAME, _listed(_NAME)]},
                            "a pool of external.pools, or several: the first one where the job's traffic leaves",
                        ),
                        "open": _described(_listed({"type": "string"}), f"what may be open: {ACCEPTED}"),
                        "per_user": _described(_COUNT, "external addresses of a user's jobs together; 1"),
                        "per_group": _described(_COUNT, "of a group's jobs together"),
                        "seconds": {"type": "integer", "minimum": 1, "maximum": external.MAX_SECONDS},
                        "names": _described({"type": "string"}, "names in the DNS: {name}.{owner}.jobs.example.org"),
                    },
                    external.RULE_KEYS,
                    ("open",),
                )
            ),
            "quarantine": _described(
                {"type": "integer", "minimum": 0, "maximum": external.MAX_QUARANTINE},
                "seconds that an address rests between two jobs",
            ),
            "refused": _described({"enum": list(external.REFUSED)}, "what becomes of a job that cannot have one"),
            "zones": _described(
                {
                    "type": "object",
                    "additionalProperties": {"type": "integer", "minimum": 0, "maximum": external.MAX_QUARANTINE},
                    "maxProperties": external.MOST_ZONES,
                },
                "zones for names, each with the seconds that others keep a name",
            ),
        },
        external.KEYS,
        ("rules",),
    )
    uplink = {"type": "string", "pattern": f"^{switches.INTERFACE}$"}
    top = {
        "version": {"const": VERSION},
        "networks": _optional(networks),
        "edge": _optional(
            _record({"uplinks": _listed(uplink), "speed": speed, "inbound": {"enum": list(InboundShares)}}, EDGE_KEYS)
        ),
        "switches": _optional({"type": "object", "additionalProperties": switch}),
        "policies": _listed(one_rule),
        "accounting": _described(
            {"enum": [*accounting.WORDS, None]}, "whose use of the network is counted; all where it is absent"
        ),
        "groups": _optional({"type": "object", "additionalProperties": groups, "maxProperties": 63}),
        "scitags": _optional(_described(fireflies, "the receivers of reports of marked flows")),
        "transfer_capacity": _optional(
            _described(
                _record(
                    {
                        "groups": {"type": "object", "additionalProperties": _RATE, "maxProperties": 63},
                        "access_points": {
                            "type": "object",
                            "additionalProperties": _RATE,
                            "maxProperties": capacity.MOST_ACCESS_POINTS,
                        },
                    },
                    capacity.KEYS,
                ),
                "what the site has for transfers; what is left of it is published in the pool",
            )
        ),
        "external": _optional(_described(external_addresses, "addresses at which jobs are reached from outside")),
        "topology": _optional(_described(network_links, "links and what they carry, for admission control")),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Lark policy",
        **_record(top, KEYS, ("version",)),
    }


def text() -> str:
    """The schema as the file ``etc/policy.schema.json`` holds it."""
    return json.dumps(schema(), indent=2) + "\n"
