"""Addresses that are no job's, and why no packet of a job reaches them. Pure."""

from __future__ import annotations

from typing import Final

from lark_common.runs import Network, NetworkType
from lark_controller.flows.wan import local_networks
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Decision, Policy, RuleKind, WanAction, WanRule
from lark_controller.qos.booking import sent_versions

NOTHING_PASSES: Final = "nothing of it passes"


class ApartAddresses:
    """The addresses of one policy, by which packets to hosts and the WAN pass or not."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._local = local_networks(policy)

    def why(self, sender: Job, sends: Decision, networks: tuple[Network, ...]) -> str:
        """The reason, with its line of the policy, why no packet of a job reaches any of these addresses (none: the
        whole WAN); "" where one may, where nothing of the job passes at all, and where the job has no address of their
        IP version."""
        if sends.isolated:
            return ""
        rule = self._policy.wans[sends.wan - 1] if sends.wan else None
        dropping = rule if rule is not None and rule.action is WanAction.DROP else None
        if not networks:
            return "" if dropping is None else _why_no_wan(sender, dropping)
        versions = sent_versions(sender)
        found = [self._why_not(sender, sends, each, dropping) for each in networks if each.version in versions]
        return found[0] if found and all(found) else ""

    def _why_not(self, sender: Job, sends: Decision, network: Network, dropping: WanRule | None) -> str:
        if why := self._why_no_slice(sender, sends, network):
            return why
        if dropping is None or _overlaps_any(network, dropping.exceptions) or _overlaps_any(network, self._local):
            return ""
        return _dropped(dropping)

    def _why_no_slice(self, sender: Job, sends: Decision, network: Network) -> str:
        """The reason why slices keep a job from an address of the job networks that is not among their hosts."""
        policy = self._policy
        if not policy.slices or _overlaps_any(network, policy.hosts):
            return ""
        if not any(_is_inside(network, each) for each in policy.job_networks):
            return ""
        where = network.network_address if network.num_addresses == 1 else network
        if sends.slice is not None:
            lines = lines_of(RuleKind.SLICE, sends)
            return f"{NOTHING_PASSES}: {where} is in the job networks and not of the job's slice{lines}"
        if sender.network_type is NetworkType.NAT:
            return (
                f"{NOTHING_PASSES}: {where} is in the job networks and of no job without a slice, and the job has none"
            )
        return ""


def lines_of(kind: RuleKind, *decisions: Decision) -> str:
    """The lines of the policy that have the rules of a kind by which was decided, in brackets; "" where none is
    known."""
    found = sorted(
        {each.line for decision in decisions for each in decision.because if each.kind is kind and each.line}
    )
    return f" (policy line{'s' if len(found) > 1 else ''} {' and '.join(map(str, found))})" if found else ""


def _why_no_wan(sender: Job, dropping: WanRule) -> str:
    if not dropping.exceptions:
        return _dropped(dropping)
    versions = sent_versions(sender)
    if any(each.version in versions for each in dropping.exceptions):
        return ""
    return (
        f"{NOTHING_PASSES}: the job's WAN traffic is dropped but for addresses of another IP version than the job's "
        f"(policy line {dropping.line})"
    )


def _dropped(rule: WanRule) -> str:
    return f"{NOTHING_PASSES}: the job's WAN traffic is dropped (policy line {rule.line})"


def _overlaps_any(network: Network, others: tuple[Network, ...]) -> bool:
    return any(each.version == network.version and each.overlaps(network) for each in others)


def _is_inside(inner: Network, outer: Network) -> bool:
    return inner.version == outer.version and inner.prefixlen >= outer.prefixlen and inner.overlaps(outer)
