"""Slice: no traffic between jobs with different values of an expression."""

from __future__ import annotations

import hashlib
from typing import Final

import classad2

from lark_common.classads.text import literal
from lark_controller.policies.model import Because, RuleKind, SliceKey, SliceRule
from lark_controller.policies.predicate import Ads, holds, value, values_met
from lark_controller.policies.yaml_nodes import FileEntry

KEYS = ("by", "when")
# Characters of a slice's value; a longer one is known by its hash. Each job has its own, in memory.
MAX_VALUE: Final = 1024


def parse(entry: FileEntry, position: int) -> SliceRule | None:
    """A slice rule out of its mapping; None, with the mistakes noted, where there is none."""
    fields = entry.mapping(KEYS, required=("by",))
    by = fields["by"].expression() if "by" in fields else None
    when = fields["when"].predicate() if "when" in fields else None
    return SliceRule(position, entry.line, by, when) if by is not None else None


def decide(rules: tuple[SliceRule, ...], ads: Ads) -> tuple[SliceKey | None, Because | None]:
    """The job's slice: of the first rule whose ``when`` is true and whose ``by`` has a value."""
    for rule in rules:
        if not holds(rule.when, ads):
            continue
        result = value(rule.by, ads)
        if isinstance(result, classad2.Value):
            continue
        met = (*values_met(rule.when, ads), *values_met(rule.by, ads))
        because = Because(RuleKind.SLICE, rule.position, rule.line, rule.when or "true", tuple(dict.fromkeys(met)))
        return SliceKey(rule.position, _shortened(literal(result))), because
    return None, None


def _shortened(text: str) -> str:
    """A value that is not too long to be kept, another one for each text."""
    if len(text) <= MAX_VALUE:
        return text
    return literal(f"sha256 {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}")
