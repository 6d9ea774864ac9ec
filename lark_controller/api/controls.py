"""The operations that REST may use, a subject each; ``lark_controller.controller.Controller`` wires what answers.

Every call may be made from any thread, and raises StoreError where it needs the database and that is away. None blocks
on a switch but those that take a ``timeout``, in seconds.
"""

from __future__ import annotations

from typing import Protocol

from lark_controller.api.audit import AuditControls
from lark_controller.api.counters import CounterControls
from lark_controller.api.drops import DropControls
from lark_controller.api.external import ExternalControls
from lark_controller.api.health import HealthControls
from lark_controller.api.instances import InstanceControls
from lark_controller.api.jobs import JobControls
from lark_controller.api.missed_switches import MissedSwitchControls
from lark_controller.api.policy import PolicyControls
from lark_controller.api.reservations import ReservationControls
from lark_controller.api.switches import SwitchControls
from lark_controller.api.usage import UsageControls
from lark_controller.api.workers import WorkerControls


class ActiveControls(Protocol):
    """The operations on a controller that serves, by subject."""

    @property
    def jobs(self) -> JobControls:
        """Jobs: registered, renewed, ended, found."""

    @property
    def switches(self) -> SwitchControls:
        """Switches, their flows, and what these do to a packet."""

    @property
    def policy(self) -> PolicyControls:
        """The policy in force, and another in its place."""

    @property
    def workers(self) -> WorkerControls:
        """The rules that workers enforce."""

    @property
    def reservations(self) -> ReservationControls:
        """The operations on reserved bandwidth."""

    @property
    def external(self) -> ExternalControls:
        """The operations on external addresses."""

    @property
    def usage(self) -> UsageControls:
        """The network use of jobs and groups."""

    @property
    def drops(self) -> DropControls:
        """The packets that are dropped now."""

    @property
    def audit(self) -> AuditControls:
        """The changes, each with its time and actor."""

    @property
    def counters(self) -> CounterControls:
        """The counters that instances which stand by read."""

    @property
    def missed_switches(self) -> MissedSwitchControls:
        """The switches that instances which stand by hand on."""

    @property
    def health(self) -> HealthControls:
        """The readiness of the controller."""


class Controls(ActiveControls, Protocol):
    """The operations on an instance of the controller. While it stands by, those on a subject other than ``instances``
    and ``health`` raise StandbyError."""

    @property
    def instances(self) -> InstanceControls:
        """The instances on one database."""
