"""The facts of stored jobs, taken again from their ads when the policy asks for other attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from lark_common.classads import ads
from lark_controller.jobs.job import Facts, Job
from lark_controller.policies.facts import facts
from lark_controller.services.described_job import Names, names_digest
from lark_controller.store import Store

_BATCH: Final = 500


def refresh_facts(store: Store, names: Names, on_batch: Callable[[dict[str, Facts]], object] | None = None) -> None:
    """Take the facts of live jobs for these attributes, where they are stored for others; ``on_batch`` takes each
    batch, by job id. Raises StoreError."""
    digest = names_digest(names)
    number = 0
    while batch := store.runs.ads_of_live(number, _BATCH, stale_for=digest):
        found = {}
        for entry in batch:
            number = entry.number
            job_ad, machine_ad = ads.reparse(entry.job_ad, entry.machine_ad)
            found[entry.id] = facts(job_ad, machine_ad, names)
        store.runs.update_facts(list(found.items()), digest)
        if on_batch is not None:
            on_batch(found)


def with_facts(store: Store, names: Names, jobs: Sequence[Job], step: Callable[[], None]) -> list[Job]:
    """The jobs with facts for these attributes, taken out of their ads in the store; nothing is kept.

    ``step`` is called for each. Raises StoreError.
    """
    found: dict[str, Facts] = {}
    number = 0
    while batch := store.runs.ads_of_live(number, _BATCH):
        for entry in batch:
            step()
            number = entry.number
            found[entry.id] = facts(*ads.reparse(entry.job_ad, entry.machine_ad), names)
    return [replace(job, facts=found.get(job.id, job.facts)) for job in jobs]
