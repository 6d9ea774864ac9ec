"""Explains the treatment of what HTCondor itself moves for the jobs at both ends of a question. Pure.

Transfers pass no job's port, so a packet's way through the switches shows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lark_controller.api.jobs import TransferState
from lark_controller.api.switches import Step
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Policy
from lark_controller.policies.transfer_rules import TransferTerms
from lark_controller.services.explain_ends import Ends

# The state of a job's transfers, by their terms.
StateOf = Callable[[Job, TransferTerms | None, Policy], TransferState | None]


def transfer_steps(ends: Ends, policy: Policy, state_of: StateOf, owner: str | None = None) -> Iterator[Step]:
    """A step for each job (of this owner) at an end; one for all where the policy has no rules of transfers. The rules
    themselves are among the others that apply to the job."""
    placed = {each.job.number: each for each in (ends.src_job, ends.dst_job) if each is not None}
    own = [each for each in placed.values() if owner in (None, each.job.owner)]
    if own and not policy.transfers:
        jobs = f"job{'s' if len(own) > 1 else ''} {' and '.join(ends.called(each.job, owner) for each in own)}"
        moved = f"what HTCondor moves for {jobs} (sandboxes, URLs)"
        yield Step("transfers", f"{moved} is outside of the policy, which has no rule for transfers")
        return
    for each in own:
        job, terms = each.job, each.decision.transfers
        state = state_of(job, terms, policy)
        if terms is None or state is None:
            words = "under no rule"
        elif state.enforced:
            words = f"{terms.words}; in place on worker {job.host}, {_reach(terms)}"
        else:
            words = f"{terms.words}; not in place on worker {job.host}: {state.reason}"
        yield Step("transfers", f"what HTCondor moves for job {ends.called(job, owner)}: {words}")


def _reach(terms: TransferTerms) -> str:
    """The directions and places in which the terms hold."""
    if terms.block or not (terms.group or terms.port):
        return "in both directions"
    limited = any(each is not None for each in (terms.rate, terms.group_rate, terms.access_point_rate))
    rate = "the rate in both directions, " if limited else ""
    marks = [f"the {each}" for each, has in (("group's", terms.group), ("WAN port's", terms.port)) if has]
    return f"{rate}{' and '.join(marks)} mark in what leaves it"
