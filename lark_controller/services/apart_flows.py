"""Flows of live jobs, to others and to the WAN, of which the policy lets nothing pass, whatever queues they have: none
is reserved, and those that were reserved before such a policy came are pending with its rule."""

from __future__ import annotations

from lark_common.errors import ApartError
from lark_common.runs import Network, NetworkType
from lark_controller.flows.wan import local_networks
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Decision, Policy, RuleKind, WanAction
from lark_controller.policies.topology import is_wan
from lark_controller.qos.booking import End
from lark_controller.qos.reservation import Reservation
from lark_controller.services.feed import Feed


class ApartFlows:
    """The reserved flows of jobs that rules keep from their destinations, with the reasons. The caller holds the feed's
    lock, but for :meth:`why` and :meth:`why_unenforced`."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._decider: Decider | None = None
        self._why: dict[str, str] = {}

    def use(self, policy: Policy) -> None:
        """Go over to a policy, and forget all flows."""
        self._decider, self._why = Decider(policy), {}

    def check(self, sender: Job | None, to: End) -> None:
        """Raises ApartError for a flow of which nothing would pass. One of a sender of which nothing passes at all is
        like all that it has reserved, and waits for another policy."""
        if sender is not None and (why := self._between(sender, to.job) or self._outside(sender, to.name, to.networks)):
            where = f"job {to.job.called}" if to.job is not None else ", ".join(map(str, to.networks)) or to.name
            raise ApartError(f"job {sender.called} to {where}: {why}")

    def note(self, reservation: Reservation) -> bool:
        """Take in a reserved flow that is new or changed, or whose sender or receiver is; returns whether its reason is
        another now."""
        before = self._why.pop(reservation.id, "")
        sender = None if reservation.job is None else self._feed.find(reservation.job)
        if reservation.peer is None:
            why = self._outside(sender, reservation.destination, reservation.target)
        else:
            why = self._between(sender, self._feed.find(reservation.peer))
        if why:
            self._why[reservation.id] = why
        return why != before

    def forget(self, reservation_id: str) -> None:
        """Forget a flow that is over."""
        self._why.pop(reservation_id, None)

    def why(self, reservation_id: str) -> str:
        """The reason why nothing of a reserved flow passes between its ends; "" where something does."""
        return self._why.get(reservation_id, "")

    def why_unenforced(self, reservation: Reservation) -> str:
        """The reason why a flow that a live job has reserved is not enforced; "" where it is, or will be at once."""
        return self._feed.directory.unenforced(reservation.job or "", self.why(reservation.id))

    def _between(self, sender: Job | None, receiver: Job | None) -> str:
        if sender is None or receiver is None or self._decider is None:
            return ""
        decide = self._decider.decide
        return why_apart(sender, decide(sender.facts), decide(receiver.facts), self._decider.policy)

    def _outside(self, sender: Job | None, to: str, networks: tuple[Network, ...]) -> str:
        if sender is None or self._decider is None:
            return ""
        if not is_wan(to):
            return "" if networks else f"the policy's topology has no addresses of {to}"
        return why_outside(self._decider.decide(sender.facts), networks, self._decider.policy)


def why_outside(sends: Decision, networks: tuple[Network, ...], policy: Policy) -> str:
    """The reason, with its line of the policy, why no packet of a job reaches any of these addresses of the WAN (none:
    the whole of it); "" where one may, and where nothing of the job passes at all."""
    rule = policy.wans[sends.wan - 1] if sends.wan and not sends.isolated else None
    if rule is None or rule.action is not WanAction.DROP:
        return ""
    passed = (*rule.exceptions, *local_networks(policy))
    if any(_overlap(each, network) for each in networks for network in passed) or (rule.exceptions and not networks):
        return ""
    return f"nothing of it passes: the job's WAN traffic is dropped (policy line {rule.line})"


def _overlap(one: Network, other: Network) -> bool:
    return one.version == other.version and one.overlaps(other)


def why_apart(sender: Job, sends: Decision, receives: Decision, policy: Policy) -> str:
    """The reason, with its lines of the policy, why no packet of one job reaches another one that has an address of its
    own; "" where one may, and where nothing of the sender passes at all."""
    if sends.isolated:
        return ""
    if receives.isolated:
        kind = RuleKind.BLOCK if receives.blocked else RuleKind.CONNECTIVITY
        closed = "is blocked" if receives.blocked else "is closed in both directions"
        return f"nothing of it passes: the receiver {closed}{_lines(kind, receives)}"
    # Without job networks the worker of a job behind NAT cannot know whose an address is.
    unknown = sender.network_type is NetworkType.NAT and sends.slice is None and not policy.job_networks
    if sends.slice != receives.slice and not unknown:
        return f"nothing of it passes: slices keep the two jobs apart{_lines(RuleKind.SLICE, sends, receives)}"
    if not (sends.outbound and receives.inbound) and not (receives.outbound and sends.inbound):
        return f"nothing of it passes: neither job may call the other{_lines(RuleKind.CONNECTIVITY, sends, receives)}"
    return ""


def _lines(kind: RuleKind, *decisions: Decision) -> str:
    found = sorted(
        {each.line for decision in decisions for each in decision.because if each.kind is kind and each.line}
    )
    return f" (policy line{'s' if len(found) > 1 else ''} {' and '.join(map(str, found))})" if found else ""
