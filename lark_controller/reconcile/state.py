"""What the reconcile loop knows, for its parts: live jobs, pools of flows, switches, and what jobs wait for.

For the loop's thread alone, so nothing here has a lock.
"""

from __future__ import annotations

from collections.abc import Callable

from lark_controller.flows.desired import Pool
from lark_controller.jobs.job import Directory
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Policy
from lark_controller.reconcile.awaited import Confirmations
from lark_controller.reconcile.desired_pair import Pools
from lark_controller.reconcile.dirty import Dirty
from lark_controller.reconcile.switch import SwitchState


class LoopState:
    """The state that the parts of the reconcile loop share; ``switches`` is by datapath id. Whoever changes something
    marks it in ``dirty``, and ``act`` follows once a turn."""

    def __init__(self, policy: Policy, act: Callable[[], object]) -> None:
        self.dirty = Dirty(act)
        self.directory = Directory()
        self.pools = Pools(policy)
        self.switches: dict[int, SwitchState] = {}
        self.confirmations = Confirmations()

    @property
    def pool(self) -> Pool:
        """The pool of the policy in force."""
        return self.pools.pool

    @property
    def decider(self) -> Decider:
        """The decider of the policy in force."""
        return self.pools.decider

    def pool_of(self, datapath: int) -> Pool:
        """The pool whose program a switch holds."""
        return self.pools.of(datapath)

    def connected(self, datapath: int) -> bool:
        """Whether a switch is here and may be told of changes."""
        state = self.switches.get(datapath)
        return state is not None and state.told
