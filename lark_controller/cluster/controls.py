"""The operations of an instance: those of its controller while it is active, else those on instances alone."""

from __future__ import annotations

from lark_common.errors import StandbyError
from lark_controller.api.audit import AuditControls
from lark_controller.api.controls import ActiveControls
from lark_controller.api.counters import CounterControls
from lark_controller.api.drops import DropControls
from lark_controller.api.external import ExternalControls
from lark_controller.api.health import HealthControls, Readiness
from lark_controller.api.instances import InstanceControls
from lark_controller.api.jobs import JobControls
from lark_controller.api.missed_switches import MissedSwitchControls
from lark_controller.api.policy import PolicyControls
from lark_controller.api.reservations import ReservationControls
from lark_controller.api.switches import SwitchControls
from lark_controller.api.usage import UsageControls
from lark_controller.api.workers import WorkerControls


class MemberControls:
    """Controls; each subject but ``instances`` and ``health`` raises StandbyError while there is no controller."""

    def __init__(self, instances: InstanceControls) -> None:
        self.instances = instances
        self._controller: ActiveControls | None = None

    def serve(self, controller: ActiveControls) -> None:
        """Have a controller answer from now on."""
        self._controller = controller

    def ready(self) -> Readiness:
        """Not ready while this instance stands by; else the controller's state."""
        standing = self.instances.standing()
        if self._controller is None or not standing.active:
            return Readiness(False, (standing.sentence,))
        return self._controller.health.ready()

    @property
    def health(self) -> HealthControls:
        """The readiness of this instance."""
        return self

    @property
    def jobs(self) -> JobControls:
        """As :class:`lark_controller.api.controls.Controls`, and so the others."""
        return self._active.jobs

    @property
    def switches(self) -> SwitchControls:
        """The switches."""
        return self._active.switches

    @property
    def policy(self) -> PolicyControls:
        """The policy in force."""
        return self._active.policy

    @property
    def workers(self) -> WorkerControls:
        """The rules that workers enforce."""
        return self._active.workers

    @property
    def reservations(self) -> ReservationControls:
        """Reserved bandwidth."""
        return self._active.reservations

    @property
    def external(self) -> ExternalControls:
        """External addresses."""
        return self._active.external

    @property
    def usage(self) -> UsageControls:
        """The network use of jobs and groups."""
        return self._active.usage

    @property
    def drops(self) -> DropControls:
        """The packets that are dropped now."""
        return self._active.drops

    @property
    def audit(self) -> AuditControls:
        """The changes."""
        return self._active.audit

    @property
    def counters(self) -> CounterControls:
        """The counters that others read."""
        return self._active.counters

    @property
    def missed_switches(self) -> MissedSwitchControls:
        """The switches that others hand on."""
        return self._active.missed_switches

    @property
    def _active(self) -> ActiveControls:
        if self._controller is None:
            standing = self.instances.standing()
            raise StandbyError(f"This controller {standing.sentence}.", standing.url)
        return self._controller
