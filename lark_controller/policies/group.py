"""Groups: how the accounting group of a job is treated on the WAN (guarantee, ceiling, queue, DSCP)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from lark_controller.policies.model import MAX_GROUPS, Because, GroupControl, GroupSpec, RuleKind, SwitchSpec
from lark_controller.policies.predicate import Ads, holds, value, values_met
from lark_controller.policies.switches import WAN
from lark_controller.policies.yaml_nodes import FileEntry

KEYS = ("guarantee", "ceiling", "burst", "queue", "port", "priority", "when", "dscp")
DEFAULT = "default"


def parse(name: str, entry: FileEntry, wan_ports: frozenset[str]) -> GroupSpec | None:
    """A group out of its mapping, DSCP 0 where the file gives none; None where it is no mapping."""
    fields = entry.mapping(KEYS)
    if not entry.is_mapping:
        return None
    when = fields["when"].predicate() if "when" in fields else None
    if when is not None and name == DEFAULT:
        fields["when"].mistake("the group 'default' takes what no other group takes", "default without when")
    guarantee = fields["guarantee"].megabits() if "guarantee" in fields else None
    ceiling = fields["ceiling"].megabits() if "ceiling" in fields else None
    if guarantee is not None and ceiling is not None and ceiling < guarantee:
        fields["ceiling"].mistake(
            f"a ceiling of {ceiling:g} Mb/s is below the guarantee of {guarantee:g} Mb/s", "the guarantee or more"
        )
    return GroupSpec(
        name=name,
        line=entry.line,
        dscp=(fields["dscp"].integer(1, 63) or 0) if "dscp" in fields else 0,
        when=when,
        queue=fields["queue"].integer(0, 0xFFFFFFFE) if "queue" in fields else None,
        guarantee=guarantee,
        ceiling=ceiling,
        burst=fields["burst"].megabits() if "burst" in fields else None,
        port=fields["port"].choice(wan_ports, "a WAN port of a core switch") if "port" in fields else None,
        priority=(fields["priority"].integer(-1000, 1000) or 0) if "priority" in fields else 0,
    )


def number(groups: list[tuple[GroupSpec, FileEntry]]) -> tuple[GroupSpec, ...]:
    """The groups with a DSCP each: those that the file gives, and for the others the lowest free ones in file order."""
    taken: dict[int, str] = {}
    for spec, entry in groups:
        if spec.dscp in taken:
            entry.mistake(
                f"DSCP {spec.dscp} is that of group {taken[spec.dscp]} already", "a DSCP (1 to 63) of its own"
            )
        elif spec.dscp:
            taken[spec.dscp] = spec.name
    free = iter([dscp for dscp in range(1, 64) if dscp not in taken])
    if len(groups) > MAX_GROUPS:
        groups[MAX_GROUPS][1].mistake(f"{len(groups)} groups", f"at most {MAX_GROUPS} groups, one a DSCP value")
        return ()
    return tuple(spec if spec.dscp else dataclasses.replace(spec, dscp=next(free)) for spec, _ in groups)


def check_rates(groups: list[tuple[GroupSpec, FileEntry]], switches: Mapping[int, SwitchSpec]) -> None:
    """Note the rates that a declared WAN port with queues of the controller's cannot give."""
    for switch in switches.values():
        if switch.group_control is not GroupControl.QUEUES:
            continue
        for name, port in switch.ports.items():
            promised = 0.0
            for spec, entry in groups[:MAX_GROUPS]:
                if not name.startswith(WAN) or spec.port not in (None, name) or port.speed is None:
                    continue
                if spec.guarantee is not None:
                    promised += spec.guarantee
                    if promised > port.speed:
                        entry.mapping(None)["guarantee"].mistake(
                            f"{promised:g} Mb/s are guaranteed on port {name} of {switch.name}, which has "
                            f"{port.speed:g}",
                            f"guarantees of {port.speed:g} Mb/s together",
                        )
                        promised -= spec.guarantee
                if spec.ceiling is not None and spec.ceiling > port.speed and spec.port == name:
                    entry.mapping(None)["ceiling"].mistake(
                        f"a ceiling of {spec.ceiling:g} Mb/s is above the {port.speed:g} Mb/s of port {name} of "
                        f"{switch.name}",
                        f"{port.speed:g} Mb/s or less",
                    )


def decide(groups: tuple[GroupSpec, ...], ads: Ads) -> tuple[str, Because | None]:
    """The name of the job's group: by predicate in file order, then by AcctGroup and its parents, then ``default``."""
    for position, spec in enumerate(groups, 1):
        if spec.when is not None and holds(spec.when, ads):
            return spec.name, Because(RuleKind.GROUP, position, spec.line, spec.when, values_met(spec.when, ads))
    by_name = {spec.name.lower(): (position, spec) for position, spec in enumerate(groups, 1) if spec.when is None}
    requested = value("MY.AcctGroup", ads)
    met = values_met("MY.AcctGroup", ads)
    # HTCondor compares the names of accounting groups without regard to case.
    name = requested.lower() if isinstance(requested, str) else ""
    while name:
        if name in by_name and name != DEFAULT:
            position, spec = by_name[name]
            return spec.name, Because(RuleKind.GROUP, position, spec.line, "", met)
        name = name.rpartition(".")[0]
    if DEFAULT in by_name:
        position, spec = by_name[DEFAULT]
        return spec.name, Because(RuleKind.GROUP, position, spec.line, "", met)
    return "", None
