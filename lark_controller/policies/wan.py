"""WAN: a job's traffic to and from outside the local networks is dropped, exempted, or steered to a named port."""

from __future__ import annotations

from lark_controller.policies.model import MAX_WAN_RULES, Because, RuleKind, WanAction, WanRule
from lark_controller.policies.predicate import Ads, holds, values_met
from lark_controller.policies.yaml_nodes import FileEntry

KEYS = ("when", "action", "except", "port")
ACTIONS = ("drop", "allow")


def parse(entry: FileEntry, position: int, wan_ports: frozenset[str]) -> WanRule | None:
    """A WAN rule out of its mapping; None, with the mistakes noted, where there is none.

    ``wan_ports`` are the names of the WAN ports of all core switches.
    """
    fields = entry.mapping(KEYS)
    if position > MAX_WAN_RULES:
        entry.mistake(f"the {position}th wan rule", f"at most {MAX_WAN_RULES} wan rules")
    when = fields["when"].predicate() if "when" in fields else None
    exceptions = tuple(item.network(hosts=True) for item in fields["except"].items()) if "except" in fields else ()
    action = fields["action"].choice(ACTIONS) if "action" in fields else None
    port = fields["port"].choice(wan_ports, "a WAN port of a core switch") if "port" in fields else None
    if "port" in fields and "action" in fields:
        fields["action"].mistake("both action and port", "one of them: port steers")
    elif "port" not in fields and "action" not in fields:
        if fields or entry.is_mapping:
            entry.mistake("neither action nor port", "action: drop, action: allow, or port: a WAN port's name")
    elif "except" in fields and action != WanAction.DROP:
        fields["except"].mistake("except without action: drop", "except beside action: drop only")
    chosen = WanAction.STEER if port is not None else WanAction(action) if action is not None else None
    if chosen is None:
        return None
    networks = tuple(network for network in exceptions if network is not None)
    return WanRule(position, entry.line, chosen, when, networks, port)


def decide(rules: tuple[WanRule, ...], ads: Ads) -> tuple[int, Because | None]:
    """The position of the WAN rule that applies, 0 where none does."""
    for rule in rules:
        if holds(rule.when, ads):
            met = values_met(rule.when, ads)
            because = Because(RuleKind.WAN, rule.position, rule.line, rule.when or "true", met, rule.does)
            return rule.position, because
    return 0, None
