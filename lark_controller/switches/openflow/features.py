"""The findings of a switch's handshake."""

from __future__ import annotations

from dataclasses import dataclass

from lark_controller.switches.openflow.ports import Ports


@dataclass(frozen=True, slots=True)
class SwitchFeatures:
    """The findings of the handshake.

    ``capabilities`` is the bitmap ofp_capabilities (OpenFlow 1.3.5, section 7.3.1). ``max_meter`` 0 is no meters, and
    ``meter_drop`` whether they have the drop band. ``normal``: the switch took a flow with output:NORMAL. ``tracks``:
    it is an Open vSwitch, and took a flow with connection tracking (``ct``) in a zone, which some kernels lack.
    ``description`` is dp_desc. ``spare_table`` is a table that takes a flow which no packet matches, None where none is
    known. ``roles``: it has roles, or was not asked for one.
    """

    n_tables: int
    capabilities: int
    max_meter: int
    meter_drop: bool
    normal: bool
    tracks: bool
    ports: Ports
    description: str
    hardware: str
    software: str
    address: str
    spare_table: int | None = None
    roles: bool = True
