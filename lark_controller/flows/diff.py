"""``diff(desired, installed) -> changes``: arithmetic, without a clock, a socket or a log."""

from __future__ import annotations

from lark_controller.flows.cookies import Category, parse
from lark_controller.flows.model import Changes, Flow, Program


def diff(desired: Program, installed: Program) -> Changes:
    """The changes that turn ``installed`` into ``desired``, and nothing more.

    Flows come out by table from the last to the first, so that a packet never goes on to a table that is not filled
    yet; deletions by table from the first to the last for the same reason. A meter that is new is kept apart from one
    that changes, because OpenFlow has different commands for the two.
    """
    if installed.flows:
        flows_set = sorted(
            (Flow(key, data) for key, data in desired.flows.items() if installed.flows.get(key) != data),
            key=lambda flow: (-flow.key.table, flow.key),
        )
    else:
        flows_set = _by_table(desired)
    flows_gone = sorted(key for key in installed.flows if key not in desired.flows)
    meters_set = [meter for number, meter in sorted(desired.meters.items()) if installed.meters.get(number) != meter]
    meters_gone = sorted(number for number in installed.meters if number not in desired.meters)
    return Changes(
        meters_set=tuple(meters_set),
        meters_new=frozenset(meter.number for meter in meters_set if meter.number not in installed.meters),
        flows_set=tuple(flows_set),
        flows_gone=tuple(flows_gone),
        meters_gone=tuple(meters_gone),
    )


def _by_table(program: Program) -> list[Flow]:
    """All flows by table from the last to the first; to compare whole keys would cost as much as the program itself."""
    tables: dict[int, list[Flow]] = {}
    for key, data in program.flows.items():
        tables.setdefault(key.table, []).append(Flow(key, data))
    return [flow for table in sorted(tables, reverse=True) for flow in tables[table]]


def drift(then: Program, now: Program, installed: Program) -> Changes:
    """The foreign changes on a switch: ``then`` and ``now`` are desired before and after its dump was taken.

    Flows that changed meanwhile are on their way already, so only unchanged ones are compared; answers to PacketIns and
    learned flows are in no program.
    """
    moving = {key for key in then.flows.keys() | now.flows.keys() if then.flows.get(key) != now.flows.get(key)}
    passing = (Category.REACTIVE, Category.LEARNED)
    held = {
        key: data
        for key, data in installed.flows.items()
        if key not in moving and parse(data.cookie).category not in passing
    }
    standing = {key: data for key, data in now.flows.items() if key not in moving}
    return diff(Program(standing, now.meters), Program(held, installed.meters))
