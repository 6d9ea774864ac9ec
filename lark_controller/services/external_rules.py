"""The policy's word on external addresses: what a job may have, and what it keeps under another policy."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from lark_common.errors import ExternalAddressError
from lark_common.runs import AddressType, NetworkType
from lark_controller.jobs.external import External, refused
from lark_controller.jobs.external_names import FullName
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import decide, quarantined
from lark_controller.policies.external import leaves_by, pool_of, rule_of
from lark_controller.policies.external_spec import ExternalRule, ExternalSpec
from lark_controller.policies.model import Policy, RuleKind
from lark_controller.policies.predicate import ads_of, holds


def rule_for(policy: Policy | None, job: Job, family: int) -> tuple[Policy, ExternalSpec, ExternalRule]:
    """The rule by which a job may have an external address of a family. Raises ExternalAddressError where there is
    none."""
    if policy is None or policy.external is None:
        raise ExternalAddressError("the policy has no external addresses")
    rule = rule_of(policy, job.facts, family)
    if rule is None:
        what = "opens this job's IPv6 address" if family == 6 else "gives this job an IPv4 address"
        raise ExternalAddressError(f"no rule of the policy's section external {what}")
    return policy, policy.external, rule


def awaits_lease(job: Job) -> bool:
    """True for a job whose IPv4 address comes by DHCP and is not there yet, where it may have an external one then."""
    by_dhcp = job.network_type is NetworkType.OVS_BRIDGE and job.address_type is AddressType.DHCP
    return by_dhcp and job.ipv4 is None


def why_not(policy: Policy, job: Job, family: int = 4) -> str:
    """The reason why a job's own network cannot be reached by an external address of a family; ``""``: it can."""
    if job.network_type is not NetworkType.OVS_BRIDGE:
        return f"network type {job.network_type}: external addresses are for jobs of type ovs_bridge"
    if job.mac is None or (job.ipv4 if family == 4 else job.ipv6) is None:
        return f"the job has no IPv{family} address of its own" + (" yet" if family == 4 and awaits_lease(job) else "")
    decision = quarantined(decide(job.facts, policy), job)
    if decision.isolated:
        return "nothing of the job may pass"
    if family == 6 and not decision.inbound:
        # The rule opens ports that the site closes, and none that the job itself has closed.
        closed = holds("MY.InboundConnectivity =?= false", ads_of(job.facts))
        return "the job's own InboundConnectivity is false" if closed else ""
    if not decision.inbound:
        lines = [each.line for each in decision.because if each.kind is RuleKind.CONNECTIVITY]
        return f"nobody may call the job: its inbound connectivity is closed (policy line {lines[0] if lines else 0})"
    return ""


def no_pool(rule: ExternalRule, port: str | None) -> str:
    """The reason why none of a rule's pools is where a job's traffic leaves (by ``port``; None: by none of theirs)."""
    names = ", ".join((rule.pool, *rule.more_pools))
    where = "is not steered to their WAN ports" if port is None else f"leaves by {port}"
    return f"pools {names} are elsewhere: the job's traffic {where} (policy line {rule.line})"


def why_over(policy: Policy | None, job: Job, has: External) -> str:
    """The reason why a policy gives a job its address no more; ``""``: it does. Quarantine closes it and takes nothing:
    the job has it again when that is lifted."""
    job = replace(job, quarantine="") if job.quarantine else job
    try:
        known, spec, rule = rule_for(policy, job, has.address.version)
    except ExternalAddressError as error:
        return str(error)
    if rule.family == 6 and has.address != job.ipv6:
        return f"{has.address} is not the job's address any more"
    decision = decide(job.facts, known)
    if (pool := pool_of(known, rule, decision)) is None:
        return no_pool(rule, leaves_by(known, decision))
    if rule.family == 4 and not any(has.address in network for network in spec.pools[pool]):
        return f"{has.address} is not in pool {pool}"
    closed = refused(has.openings, rule.openings)
    return f"the policy opens {', '.join(map(str, closed))} no more" if closed else why_not(known, job, rule.family)


def full_name(rule: ExternalRule, label: str, job: Job) -> FullName:
    """The name that a rule gives for a label. Raises ExternalAddressError."""
    if rule.names is None:
        raise ExternalAddressError(f"the policy gives this job's address no name (line {rule.line})")
    try:
        return rule.names.full(label, job.owner)
    except ValueError as error:
        raise ExternalAddressError(f"no name: {error}") from None


def why_nameless(policy: Policy | None, job: Job, has: External) -> str:
    """The reason why a policy gives a job's address its name no more; ``""``: it does, or there is none."""
    if not has.name:
        return ""
    try:
        _, _, rule = rule_for(policy, job, has.address.version)
        name = full_name(rule, has.name.partition(".")[0], job)
    except ExternalAddressError as error:
        return str(error)
    return "" if name.text == has.name else f"the policy names it {name.text} now"


class Kept(NamedTuple):
    """The external addresses that a live job keeps under another policy, and sentences on what it loses."""

    external: tuple[External, ...]
    losses: tuple[str, ...] = ()


def kept(policy: Policy, job: Job) -> Kept:
    """The external addresses of a live job under a policy. None comes by a policy alone: a job has to ask."""
    keeps: list[External] = []
    losses: list[str] = []
    for each in job.external:
        if reason := why_over(policy, job, each):
            losses.append(f"loses external address {each.address}: {reason}")
        elif reason := why_nameless(policy, job, each):
            losses.append(f"loses the name {each.name}: {reason}")
            keeps.append(each._replace(name=""))
        else:
            keeps.append(each)
    return Kept(tuple(keeps), tuple(losses)) if losses else Kept(job.external)
