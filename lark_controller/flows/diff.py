"""``diff(desired, installed) -> changes``: arithmetic, without a clock, a socket or a log."""

from __future__ import annotations

from lark_controller.flows.model import Changes, Flow, Program


def diff(desired: Program, installed: Program) -> Changes:
    """What must be sent to a switch that holds ``installed`` so that it holds ``desired``, and nothing more.

    Flows come out by table from the last to the first, so that a packet never goes on to a table that is not filled
    yet; deletions by table from the first to the last for the same reason. A meter that is new is told apart from one
    that changes, because OpenFlow has different commands for the two.
    """
    flows_set = sorted(
        (Flow(key, data) for key, data in desired.flows.items() if installed.flows.get(key) != data),
        key=lambda flow: (-flow.key.table, flow.key),
    )
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
