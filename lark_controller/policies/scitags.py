"""SciTags: the experiment and activity of a job's flows, by which science networks know them, and the receivers."""

from __future__ import annotations

import re
from typing import Final

from lark_common.scitags import MOST_ACTIVITY, MOST_EXPERIMENT, PORT, Collector
from lark_controller.policies.model import Because, FireflySpec, NamedScitag, RuleKind, ScitagsRule
from lark_controller.policies.predicate import Ads, holds, value, values_met
from lark_controller.policies.scitag_registry import Name
from lark_controller.policies.yaml_nodes import FileEntry

KEYS: Final = ("experiment", "activity", "requested", "when")
SECTION_KEYS: Final = ("collectors", "destinations", "flows", "ongoing", "labels", "jobs")
# Which flows are reported: those with the WAN, or all.
FLOWS: Final = ("wan", "all")
ATTRIBUTE: Final = "ScitagActivity"
# The activity that every experiment of the registry calls its default.
DEFAULT_ACTIVITY: Final = 1
# Every datagram is sent so many times.
MOST_COLLECTORS: Final = 8
MOST_REQUESTED: Final = 64
# Seconds between two messages of a flow that goes on.
ONGOING: Final = 60
SHORTEST_ONGOING: Final = 5
LONGEST_ONGOING: Final = 3600
# Names of the registry; an address, or a name of the DNS, with a port or without.
NAME: Final = r"[!-~]([ -~]{0,62}[!-~])?"
COLLECTOR: Final = r"([A-Za-z0-9._-]{1,253}|\[[0-9a-fA-F:.]{2,45}\])(:[0-9]{1,5})?"
_COLLECTOR_WORDS: Final = f"a host, with its port where that is not {PORT}: collector.example.org, [2001:db8::5]:10515"


def parse(entry: FileEntry, position: int) -> ScitagsRule | None:
    """A rule out of its mapping; None, with the mistakes noted, where there is none."""
    fields = entry.mapping(KEYS, required=("experiment",))
    experiment = _name(fields["experiment"], MOST_EXPERIMENT) if "experiment" in fields else None
    activity = _name(fields["activity"], MOST_ACTIVITY) if "activity" in fields else DEFAULT_ACTIVITY
    items = fields["requested"].items(MOST_REQUESTED) if "requested" in fields else []
    requested = tuple(name for item in items if (name := _name(item, MOST_ACTIVITY)) is not None)
    when = fields["when"].predicate() if "when" in fields else None
    if experiment is None or activity is None:
        return None
    return ScitagsRule(position, entry.line, experiment, activity, requested, when)


def parse_section(entry: FileEntry) -> FireflySpec:
    """The section ``scitags``: the receivers of reports of marked flows."""
    fields = entry.mapping(SECTION_KEYS)
    collectors = []
    for item in fields["collectors"].items(MOST_COLLECTORS) if "collectors" in fields else ():
        text = item.text(_COLLECTOR_WORDS, COLLECTOR)
        if text is None:
            continue
        host, _, port = text.rpartition(":") if re.search(r":[0-9]+$", text) else (text, "", "")
        if port and not 1 <= int(port) <= 65535:
            item.mistake(f"{port} is no port", "a port from 1 to 65535")
        else:
            collectors.append(Collector(host.strip("[]"), int(port or PORT)))
    flows = fields["flows"].choice(FLOWS) if "flows" in fields else FLOWS[0]
    seconds = _ongoing(fields["ongoing"]) if "ongoing" in fields else ONGOING
    destinations = fields["destinations"].boolean() if "destinations" in fields else False
    labels = fields["labels"].boolean() if "labels" in fields else False
    own = fields["jobs"].boolean() if "jobs" in fields else False
    told = tuple(dict.fromkeys(collectors))
    return FireflySpec(told, bool(destinations), flows == "all", seconds, bool(labels), bool(own))


def _ongoing(entry: FileEntry) -> int:
    seconds = entry.integer(0, LONGEST_ONGOING)
    if seconds is not None and 0 < seconds < SHORTEST_ONGOING:
        entry.mistake(f"{seconds} is too often", f"0 (never), or seconds from {SHORTEST_ONGOING} to {LONGEST_ONGOING}")
    return ONGOING if seconds is None else seconds


def _name(entry: FileEntry, most: int) -> Name | None:
    if entry.is_text:
        return entry.text("a name of the registry, at most 64 printable characters", NAME)
    return entry.integer(1, most)


def decide(rules: tuple[ScitagsRule, ...], ads: Ads) -> tuple[NamedScitag | None, Because | None]:
    """The mark of the job's flows, and the rule that decided it; None: they have none."""
    for rule in rules:
        if not holds(rule.when, ads):
            continue
        met = dict(values_met(rule.when, ads))
        activity = rule.activity
        if rule.requested:
            activity_of_ad = value(f"MY.{ATTRIBUTE}", ads)
            activity = next((name for name in rule.requested if _is_same(name, activity_of_ad)), activity)
            met |= dict(values_met(f"MY.{ATTRIBUTE}", ads))
        because = Because(RuleKind.SCITAGS, rule.position, rule.line, rule.when or "true", tuple(met.items()))
        return NamedScitag(rule.experiment, activity), because
    return None, None


def _is_same(name: Name, activity_of_ad: object) -> bool:
    """True if a job asks for the activity that a rule names, in the way in which the rule names it."""
    if isinstance(name, str):
        return isinstance(activity_of_ad, str) and activity_of_ad.lower() == name.lower()
    # Undefined and true are integers, too.
    return type(activity_of_ad) is int and activity_of_ad == name
