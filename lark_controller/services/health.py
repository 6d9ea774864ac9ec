"""Whether the controller can do its work. Called by REST threads."""

from __future__ import annotations

from lark_common.errors import StoreError
from lark_controller.api.health import Readiness
from lark_controller.store import Store
from lark_controller.switches.openflow.loop_thread import OpenFlow


class Health:
    """The health of the parts that the controller cannot do without. Thread-safe."""

    def __init__(self, store: Store, openflow: OpenFlow) -> None:
        self._store = store
        self._openflow = openflow

    def ready(self) -> Readiness:
        """Whether store, policy and OpenFlow listener are up."""
        reasons = []
        try:
            self._store.ping()
        except StoreError as error:
            reasons.append(str(error))
        if not self._openflow.running:
            reasons.append("the OpenFlow listener is not running")
        return Readiness(not reasons, tuple(reasons))
