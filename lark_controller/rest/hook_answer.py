"""A registered job as ClassAd lines, which a prepare hook prints for HTCondor to merge into the job ad."""

from __future__ import annotations

from lark_common import hook_answer
from lark_controller.api.jobs import Confirmation


def lines(confirmation: Confirmation) -> str:
    """The job's id, its state and its addresses, and which switches have confirmed it."""
    job = confirmation.job
    blocks: dict[str, str | int] = {
        f"LarkAddressBlockIPv{address.version}": str(block) for address, block in job.blocks if block is not None
    }
    return hook_answer.lines(
        hook_answer.JobAnswer(
            job.id, job.state, job.reason, job.address_type, job.network_type, [address for address, _ in job.blocks]
        ),
        {
            **blocks,
            **hook_answer.external(job.external_addresses, job.external_open, job.external_name),
            "LarkLeaseUntil": int(job.lease_until),
            "LarkConfirmed": ",".join(confirmation.confirmed),
            "LarkWaiting": ",".join(waiting.datapath or "" for waiting in confirmation.waiting),
        },
    )
