"""Connectivity: which directions a job may open connections in (InboundConnectivity, OutboundConnectivity; Table I)."""

from __future__ import annotations

from lark_controller.policies.model import Because, ConnectivityRule, Reach, RuleKind
from lark_controller.policies.predicate import Ads, holds, values_met
from lark_controller.policies.yaml_nodes import FileEntry

KEYS = ("inbound", "outbound", "when")
REACHES = tuple(reach.value for reach in Reach)
INBOUND = "InboundConnectivity"
OUTBOUND = "OutboundConnectivity"


def parse(entry: FileEntry, position: int) -> ConnectivityRule | None:
    """A connectivity rule out of its mapping; a direction that is not named is ``allow``. None where there is none."""
    fields = entry.mapping(KEYS)
    if entry.is_mapping and not fields.keys() & {"inbound", "outbound"}:
        entry.mistake("neither inbound nor outbound", f"one or both, each {', '.join(REACHES)}")
        return None
    inbound = fields["inbound"].choice(REACHES) if "inbound" in fields else Reach.ALLOW
    outbound = fields["outbound"].choice(REACHES) if "outbound" in fields else Reach.ALLOW
    when = fields["when"].predicate() if "when" in fields else None
    if inbound is None or outbound is None:
        return None
    return ConnectivityRule(position, entry.line, Reach(inbound), Reach(outbound), when)


def decide(rules: tuple[ConnectivityRule, ...], ads: Ads) -> tuple[bool, bool, Because | None]:
    """The two directions of the job's connections, open or not, and the rule that decided them. No rule: both."""
    for rule in rules:
        if not holds(rule.when, ads):
            continue
        requested: dict[str, None] = {}
        allowed = []
        for reach, attribute in ((rule.inbound, INBOUND), (rule.outbound, OUTBOUND)):
            if reach is Reach.REQUESTED:
                requested[attribute] = None
                # A job that does not ask (absent, Undefined) is not restricted.
                allowed.append(not holds(f"MY.{attribute} =?= false", ads))
            else:
                allowed.append(reach is Reach.ALLOW)
        met = dict(values_met(rule.when, ads))
        for attribute in requested:
            met |= dict(values_met(f"MY.{attribute}", ads))
        because = Because(RuleKind.CONNECTIVITY, rule.position, rule.line, rule.when or "true", tuple(met.items()))
        return allowed[0], allowed[1], because
    return True, True, None
