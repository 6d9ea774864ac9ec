"""Flows of live jobs, to others, to hosts and to the WAN, of which nothing passes, whatever queues they have: none is
reserved, and those that were reserved before such a policy or state came are pending with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from lark_common.errors import ApartError
from lark_common.runs import NetworkType
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Decision, Policy, RuleKind
from lark_controller.policies.topology import is_wan
from lark_controller.qos.booking import End, why_no_version, why_no_version_between
from lark_controller.qos.reservation import Reservation
from lark_controller.qos.topology import has_some_of
from lark_controller.services.apart_addresses import NOTHING_PASSES, ApartAddresses, lines_of
from lark_controller.services.feed import Feed
from lark_controller.services.reserved_flows import holders_of


class ApartFlows:
    """The reserved flows of jobs that rules keep from their destinations, with the reasons. The caller holds the feed's
    lock, but for :meth:`why` and :meth:`why_unenforced`."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._decider: Decider | None = None
        self._addresses: ApartAddresses | None = None
        self._why: dict[str, str] = {}
        # By reservation whose addresses an older one of its job has, that it has them.
        self._shared: dict[str, str] = {}

    def use(self, policy: Policy) -> None:
        """Go over to a policy, and forget all flows."""
        self._decider, self._addresses = Decider(policy), ApartAddresses(policy)
        self._why, self._shared = {}, {}

    def check(self, sender: Job | None, to: End) -> None:
        """Raises ApartError for a flow of which nothing would pass, but for one to addresses of another IP version. One
        of a sender of which nothing passes at all is like all that it has reserved, and waits for another policy."""
        if sender is not None and (why := self._between(sender, to.job) or self._outside(sender, to)):
            where = f"job {to.job.called}" if to.job is not None else ", ".join(map(str, to.networks)) or to.name
            raise ApartError(f"job {sender.called} to {where}: {why}")

    def note(self, reservation: Reservation) -> None:
        """Take in a reserved flow that is new or changed, or of which an end has changed."""
        sender = None if reservation.job is None else self._feed.find(reservation.job)
        if sender is not None and (why := self._why_of(sender, reservation)):
            self._why[reservation.id] = why
        else:
            self._why.pop(reservation.id, None)

    def forget(self, reservation_id: str) -> None:
        """Forget a flow that is over."""
        self._why.pop(reservation_id, None)
        self._shared.pop(reservation_id, None)

    def note_shared(self, job_id: str, flows: Sequence[Reservation]) -> None:
        """Take in which of the reserved flows from and to a job, in order of number, has which address."""
        holders = holders_of(job_id, flows)
        taken = set(holders.values())
        for each in flows:
            if each.job == job_id and each.target and each.id not in taken:
                self._shared[each.id] = f"reservation {holders[each.target[0]]} has the same addresses"
            elif each.job == job_id:
                self._shared.pop(each.id, None)

    def why(self, reservation_id: str) -> str:
        """The reason why nothing of a reserved flow passes between its ends; "" where something does."""
        return self._why.get(reservation_id, "") or self._shared.get(reservation_id, "")

    def why_unenforced(self, reservation: Reservation) -> str:
        """The reason why a flow that a live job has reserved is not enforced; "" where it is, or will be at once."""
        return self._feed.directory.unenforced(reservation.job or "", self.why(reservation.id))

    def _why_of(self, sender: Job, flow: Reservation) -> str:
        if flow.peer is not None:
            receiver = self._feed.find(flow.peer)
            if receiver is None:
                return ""
            return self._between(sender, receiver) or why_no_version_between(sender, receiver)
        to = End(flow.destination, None, flow.target, whole=flow.to_host)
        return self._outside(sender, to) or why_no_version(sender, flow.target, to.called)

    def _between(self, sender: Job, receiver: Job | None) -> str:
        if receiver is None or self._decider is None:
            return ""
        return why_apart(sender, self._decider.of(sender), self._decider.of(receiver), self._decider.policy)

    def _outside(self, sender: Job, to: End) -> str:
        if to.job is not None or self._decider is None or self._addresses is None:
            return ""
        if not is_wan(to.node):
            if not to.networks:
                return f"the policy's topology has no addresses of {to.node}"
            topology = self._decider.policy.topology
            if topology is None or not has_some_of(topology, to.node, to.networks):
                return f"no host of the policy's topology has {', '.join(map(str, to.networks))}"
        return self._addresses.why(sender, self._decider.of(sender), to.networks)


def why_apart(sender: Job, sends: Decision, receives: Decision, policy: Policy) -> str:
    """The reason, with its lines of the policy, why no packet of one job reaches another one that has an address of its
    own; "" where one may, and where nothing of the sender passes at all."""
    if sends.isolated:
        return ""
    if receives.blocked:
        return f"{NOTHING_PASSES}: the receiver is blocked{lines_of(RuleKind.BLOCK, receives)}"
    if not (receives.inbound or receives.outbound):
        closed = lines_of(RuleKind.CONNECTIVITY, receives)
        return f"{NOTHING_PASSES}: the receiver is closed in both directions{closed}"
    if receives.quarantine:
        # Why it is may name other jobs, and the sender's user is told.
        return f"{NOTHING_PASSES}: the receiver is in quarantine"
    # Without job networks the worker of a job behind NAT cannot know whose an address is.
    unknown = sender.network_type is NetworkType.NAT and sends.slice is None and not policy.job_networks
    if sends.slice != receives.slice and not unknown:
        return f"{NOTHING_PASSES}: slices keep the two jobs apart{lines_of(RuleKind.SLICE, sends, receives)}"
    if not (sends.outbound and receives.inbound) and not (receives.outbound and sends.inbound):
        return f"{NOTHING_PASSES}: neither job may call the other{lines_of(RuleKind.CONNECTIVITY, sends, receives)}"
    return ""
