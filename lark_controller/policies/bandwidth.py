"""Host bandwidth: whose RequestBandwidth (paper, Table I) is enforced on the worker, and how."""

from __future__ import annotations

from typing import Final

from lark_controller.policies.model import BandwidthMode, BandwidthRule, Because, HostBandwidth, RuleKind
from lark_controller.policies.predicate import Ads, holds, values_met
from lark_controller.policies.yaml_nodes import FileEntry

KEYS = ("when", "mode", "default", "maximum", "ceiling")
MODES = tuple(mode.value for mode in BandwidthMode)
ATTRIBUTE = "BandwidthMode"
# The reason why a job's reservation is not enforced while it takes room on links.
NO_RULE: Final = "no bandwidth rule of the policy is for this job: its rate is kept free on links, and not enforced"


def parse(entry: FileEntry, position: int) -> BandwidthRule | None:
    """A bandwidth rule out of its mapping; None where there is none."""
    fields = entry.mapping(KEYS)
    if not entry.is_mapping:
        return None
    mode = fields["mode"].choice(MODES) if "mode" in fields else BandwidthMode.CAP
    default = fields["default"].megabits() if "default" in fields else None
    maximum = fields["maximum"].megabits() if "maximum" in fields else None
    ceiling = fields["ceiling"].megabits() if "ceiling" in fields else None
    if default is not None and maximum is not None and default > maximum:
        fields["default"].mistake(
            f"a default of {default:g} Mb/s is above the maximum of {maximum:g} Mb/s", "the maximum or less"
        )
    if ceiling is not None and mode == BandwidthMode.CAP:
        fields["ceiling"].mistake(
            "a ceiling beside mode: cap, where what a job requests is its ceiling",
            f"ceiling beside mode: {BandwidthMode.GUARANTEE} or {BandwidthMode.REQUESTED}",
        )
    elif ceiling is not None and (floor := max(default or 0.0, maximum or 0.0)) > ceiling:
        fields["ceiling"].mistake(
            f"a ceiling of {ceiling:g} Mb/s is below a guarantee of {floor:g} Mb/s that the rule gives",
            "the default and the maximum, or more",
        )
    when = fields["when"].predicate() if "when" in fields else None
    if mode is None:
        return None
    return BandwidthRule(position, entry.line, BandwidthMode(mode), when, default, maximum, ceiling)


def decide(rules: tuple[BandwidthRule, ...], ads: Ads) -> tuple[HostBandwidth | None, Because | None]:
    """The enforcement of the job's bandwidth on its worker, and the rule that decided it; None: it is not."""
    for rule in rules:
        if not holds(rule.when, ads):
            continue
        met = dict(values_met(rule.when, ads))
        borrows = rule.mode is BandwidthMode.GUARANTEE
        if rule.mode is BandwidthMode.REQUESTED:
            borrows = holds(f'MY.{ATTRIBUTE} =?= "{BandwidthMode.GUARANTEE}"', ads)
            met |= dict(values_met(f"MY.{ATTRIBUTE}", ads))
        because = Because(RuleKind.BANDWIDTH, rule.position, rule.line, rule.when or "true", tuple(met.items()))
        # A cap is the ceiling itself.
        return HostBandwidth(borrows, rule.default, rule.maximum, rule.ceiling if borrows else None), because
    return None, None
