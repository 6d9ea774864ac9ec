"""Block: no traffic at all for the jobs for which a predicate is true."""

from __future__ import annotations

from lark_controller.policies.model import Because, BlockRule, RuleKind
from lark_controller.policies.predicate import Ads, holds, values_met
from lark_controller.policies.yaml_nodes import FileEntry

KEYS = ("when",)


def parse(entry: FileEntry, position: int) -> BlockRule | None:
    """A block rule out of its mapping; None, with the mistakes noted, where there is none."""
    fields = entry.mapping(KEYS, required=("when",))
    when = fields["when"].predicate() if "when" in fields else None
    return BlockRule(position, entry.line, when) if when is not None else None


def decide(rules: tuple[BlockRule, ...], ads: Ads) -> tuple[bool, Because | None]:
    """True if the job is blocked, and the rule that decided it."""
    for rule in rules:
        if holds(rule.when, ads):
            return True, Because(RuleKind.BLOCK, rule.position, rule.line, rule.when, values_met(rule.when, ads))
    return False, None
