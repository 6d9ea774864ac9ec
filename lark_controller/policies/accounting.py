"""Accounting: whose use of the network is counted and kept (NetworkAccounting; paper, Table I)."""

from __future__ import annotations

from lark_controller.policies.model import Accounting
from lark_controller.policies.predicate import Ads, holds
from lark_controller.policies.yaml_nodes import FileEntry

WORDS = tuple(word.value for word in Accounting)
ATTRIBUTE = "NetworkAccounting"


def parse(entry: FileEntry) -> Accounting:
    """The value of the section ``accounting``; a mistake is noted and counts as the default."""
    word = entry.choice(WORDS)
    return Accounting.ALL if word is None else Accounting(word)


def decide(accounting: Accounting, ads: Ads) -> bool:
    """True if a job's use is counted."""
    if accounting is Accounting.REQUESTED:
        return holds(f"MY.{ATTRIBUTE} =?= true", ads)
    return accounting is Accounting.ALL
