"""The state that the parts of the reconcile loop share: live jobs, desired flows, switches, confirmations.

For the loop's thread alone, so nothing here has a lock.
"""

from __future__ import annotations

from collections.abc import Callable

from lark_controller.api.audit import Happening
from lark_controller.flows.desired import Desired
from lark_controller.jobs.job import Directory
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Policy
from lark_controller.reconcile.confirmations import Confirmations
from lark_controller.reconcile.desired_pair import DesiredPair
from lark_controller.reconcile.dirty import Dirty
from lark_controller.reconcile.prepared import PreparedDirectory
from lark_controller.reconcile.standstill import Standstill
from lark_controller.reconcile.switch import LinksTold, SwitchState


class LoopState:
    """The state that the parts of the reconcile loop share; ``switches`` is by datapath id, ``prepared`` its beginning.

    Each change is marked in ``dirty``, and ``act`` follows once a turn. ``note`` takes what the audit trail is to
    have.
    """

    def __init__(
        self,
        policy: Policy,
        act: Callable[[], object],
        note: Callable[[Happening], None],
        prepared: PreparedDirectory | None = None,
    ) -> None:
        self.note = note
        self.dirty = Dirty(act)
        self.directory = Directory() if prepared is None else prepared.directory
        self.pair = DesiredPair(policy, prepared)
        self.switches: dict[int, SwitchState] = {}
        # The links of switches that are down by the audit trail of a controller before.
        self.links_told: dict[int, LinksTold] = {}
        self.confirmations = Confirmations()
        self.standstill = Standstill()

    def switch_state(self, datapath: int) -> SwitchState:
        """The state of a switch, which may come for the first time."""
        if (state := self.switches.get(datapath)) is None:
            told = self.links_told.pop(datapath, {})
            state = self.switches[datapath] = SwitchState(datapath, told=told)
        return state

    @property
    def desired(self) -> Desired:
        """The desired state of the policy in force."""
        return self.pair.desired

    @property
    def decider(self) -> Decider:
        """The decider of the policy in force."""
        return self.pair.decider

    def desired_of(self, datapath: int) -> Desired:
        """The desired state whose program a switch holds."""
        return self.pair.of(datapath)

    def connected(self, datapath: int) -> bool:
        """True while a switch is connected and takes changes."""
        state = self.switches.get(datapath)
        return state is not None and state.compared

    def why_away(self, datapath: int) -> str:
        """The reason why a switch takes no changes; ``""`` while it does."""
        if self.connected(datapath):
            return ""
        state = self.switches.get(datapath)
        return "has not connected yet" if state is None else state.reason
