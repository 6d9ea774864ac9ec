"""Capacity for transfers: the rate that a site has for what HTCondor moves, by group and by access point.

It limits nothing: what is left of it is published in the pool, for those who schedule.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from lark_controller.policies.transfer_rules import TransferCapacity
from lark_controller.policies.yaml_nodes import FileEntry

KEYS: Final = ("groups", "access_points")
MOST_ACCESS_POINTS: Final = 256


def parse(entry: FileEntry, groups: frozenset[str]) -> TransferCapacity:
    """The section ``transfer_capacity``, where the policy has these ``groups``."""
    fields = entry.mapping(KEYS)
    of_groups = fields["groups"].mapping(sorted(groups)) if "groups" in fields else {}
    of_points = fields["access_points"].mapping(None) if "access_points" in fields else {}
    if len(of_points) > MOST_ACCESS_POINTS:
        entry.mistake(f"{len(of_points)} access points", f"at most {MOST_ACCESS_POINTS}")
    return TransferCapacity(
        MappingProxyType({name: rate for name, each in of_groups.items() if (rate := each.megabits()) is not None}),
        # As in GlobalJobId; names of machines are the same in any case.
        MappingProxyType(
            {name.lower(): rate for name, each in of_points.items() if (rate := each.megabits()) is not None}
        ),
    )
