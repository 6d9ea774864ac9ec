"""``decide(facts, policy) -> Decision``: the decisions of all kinds of rules, put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from lark_controller.jobs.job import Facts, Job
from lark_controller.policies import accounting, bandwidth, block, connectivity, group, scitags, transfers, wan
from lark_controller.policies import slice as slices
from lark_controller.policies.model import Accounting, BandwidthMode, Decision, Policy
from lark_controller.policies.predicate import ads_of, references

# Facts that name something of which each job has its own (ClusterId) would fill the memory of a controller that runs
# for months: beyond this many, the oldest decisions are forgotten. So are they where their facts are long: a user may
# write thousands of characters into each of many jobs.
MAX_REMEMBERED: Final = 262144
MAX_CHARACTERS: Final = 128 << 20


def needed_attributes(policy: Policy) -> tuple[frozenset[str], frozenset[str]]:
    """The attributes, in lower case, of the job ad and of the machine ad that :func:`decide` may look at, or that
    reservations need."""
    job = {"acctgroup", connectivity.INBOUND.lower(), connectivity.OUTBOUND.lower()}
    if any(rule.mode is BandwidthMode.REQUESTED for rule in policy.bandwidths):
        job.add(bandwidth.ATTRIBUTE.lower())
    if policy.accounting is Accounting.REQUESTED:
        job.add(accounting.ATTRIBUTE.lower())
    if any(rule.requested for rule in policy.scitags):
        job.add(scitags.ATTRIBUTE.lower())
    if policy.topology is not None:
        job |= {"requestmpibandwidth", "node"}
    machine: set[str] = set()
    for text in _expressions(policy):
        needed = references(text)
        job |= needed.job
        machine |= needed.machine
    return frozenset(job), frozenset(machine)


def _expressions(policy: Policy) -> Iterable[str]:
    predicates = (
        *(rule.when for rule in policy.blocks),
        *(rule.when for rule in policy.slices),
        *(rule.when for rule in policy.wans),
        *(rule.when for rule in policy.connectivities),
        *(rule.when for rule in policy.bandwidths),
        *(rule.when for rule in policy.transfers),
        *(rule.when for rule in policy.scitags),
        *(spec.when for spec in policy.groups),
        *(rule.when for rule in (() if policy.external is None else policy.external.rules)),
    )
    yield from (text for text in predicates if text is not None)
    yield from (rule.by for rule in policy.slices)


def decide(facts: Facts, policy: Policy, step: Callable[[], None] = lambda: None) -> Decision:
    """Decides for a job with these facts. Within a kind the first rule that matches decides; ``step`` is called between
    the evaluations of their expressions."""
    ads = ads_of(facts, step)
    blocked, because_block = block.decide(policy.blocks, ads)
    key, because_slice = slices.decide(policy.slices, ads)
    position, because_wan = wan.decide(policy.wans, ads)
    inbound, outbound, because_connectivity = connectivity.decide(policy.connectivities, ads)
    name, because_group = group.decide(policy.groups, ads)
    share, because_bandwidth = bandwidth.decide(policy.bandwidths, ads)
    terms, because_transfers = transfers.decide(policy.transfers, name, ads)
    scitag, because_scitags = scitags.decide(policy.scitags, ads)
    reasons = (
        because_block,
        because_slice,
        because_wan,
        because_connectivity,
        because_group,
        because_bandwidth,
        because_transfers,
        because_scitags,
    )
    return Decision(
        blocked=blocked,
        slice=key,
        wan=position,
        inbound=inbound,
        outbound=outbound,
        group=name,
        bandwidth=share,
        transfers=terms,
        accounted=accounting.decide(policy.accounting, ads),
        because=tuple(reason for reason in reasons if reason is not None),
        scitag=scitag,
    )


def _size(facts: Facts, decision: Decision) -> int:
    return facts.size + decision.size


def quarantined(decision: Decision, job: Job) -> Decision:
    """A decision with the job's quarantine, where it is in one."""
    return replace(decision, quarantine=job.quarantine) if job.quarantine else decision


class Decider:
    """Decides under one policy, and keeps its decisions: equal facts get the same Decision object.

    For one thread at a time; ``names`` are the policy's :func:`needed_attributes`, and ``step`` is that of
    :func:`decide`.
    """

    def __init__(self, policy: Policy, step: Callable[[], None] = lambda: None) -> None:
        self.policy = policy
        self._step = step
        self.names = needed_attributes(policy)
        self._remembered: dict[Facts, tuple[Facts, Decision]] = {}
        # The same by the identity of the facts that are kept there: equal facts are mostly one object.
        self._identical: dict[int, tuple[Facts, Decision]] = {}
        # The characters of all facts and decisions that are remembered.
        self._characters = 0

    def decide(self, facts: Facts) -> Decision:
        """As :func:`decide`."""
        return self._entry(facts)[1]

    def of(self, job: Job) -> Decision:
        """As :func:`decide`, with the job's quarantine."""
        # A start and a change of policy ask for each job, and mostly that is all there is to do.
        entry = self._identical.get(id(job.facts)) or self._entry(job.facts)
        return quarantined(entry[1], job) if job.quarantine else entry[1]

    def shared(self, facts: Facts) -> Facts:
        """The one object that stands for all facts equal to these, so that many jobs can hold it in little memory."""
        return self._entry(facts)[0]

    def _entry(self, facts: Facts) -> tuple[Facts, Decision]:
        entry = self._identical.get(id(facts))
        if entry is not None:
            return entry
        entry = self._remembered.get(facts)
        if entry is None:
            entry = (facts, decide(facts, self.policy, self._step))
            self._characters += _size(*entry)
            while len(self._remembered) >= MAX_REMEMBERED or (self._remembered and self._characters > MAX_CHARACTERS):
                oldest = next(iter(self._remembered))
                self._characters -= _size(*self._remembered.pop(oldest))
                del self._identical[id(oldest)]
            self._remembered[facts] = self._identical[id(facts)] = entry
        return entry
