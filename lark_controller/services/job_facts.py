"""The facts of stored jobs, taken again from their ads when the policy asks for other attributes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import classad2

from lark_common.classads.text import attribute_lines, parse_ad, plain_part
from lark_common.errors import AdError
from lark_common.log import WARNING, event
from lark_controller.jobs.job import Facts, Job
from lark_controller.policies.facts import Known, taken
from lark_controller.services.described_job import Names, names_digest
from lark_controller.store import LiveAds, Store

# Ads that are in memory together, each of up to 256 kB.
_BATCH: Final = 100


def refresh_facts(store: Store, names: Names, on_batch: Callable[[dict[str, Facts]], object] | None = None) -> None:
    """Take the facts of live jobs for these attributes, where they are stored for others; ``on_batch`` takes each
    batch, by job id. Raises StoreError."""
    digest = names_digest(names)
    number = 0
    while batch := store.runs.ads_of_live(number, _BATCH, stale_for=digest):
        found = {}
        for entry in batch:
            number = entry.number
            found[entry.id] = _facts_of(entry, names)
        store.runs.update_facts(list(found.items()), digest)
        if on_batch is not None:
            on_batch(found)


def with_facts(store: Store, names: Names, jobs: Sequence[Job], keep: Callable[[int], None]) -> list[Job]:
    """The jobs with facts for these attributes, taken out of their ads in the store; nothing is kept.

    ``keep`` is called for each with its characters. Raises StoreError.
    """
    found: dict[str, Facts] = {}
    number = 0
    while batch := store.runs.ads_of_live(number, _BATCH):
        for entry in batch:
            number = entry.number
            found[entry.id] = _facts_of(entry, names)
            keep(found[entry.id].size)
    return [replace(job, facts=found.get(job.id, job.facts)) for job in jobs]


def _facts_of(entry: LiveAds, names: Names) -> Facts:
    """Facts out of ads that were accepted when they were posted. Nothing in them is refused again: neither the start
    nor a change of the policy may depend on what stands in one job's ads."""
    known = Known(entry.owner, entry.user, entry.group, entry.inbound, entry.outbound)
    of_job, of_machine = _lines(names)
    # Of a starter's hundreds of attributes a policy refers to a few.
    job, machine = plain_part(entry.job_ad, of_job), plain_part(entry.machine_ad, of_machine)
    if job is None or machine is None:
        job, machine = _read(entry, entry.job_ad), _read(entry, entry.machine_ad)
    return taken(known, job, machine, names)


@lru_cache(maxsize=8)
def _lines(names: Names) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The lines of these attributes, a machine's with and without the prefix Lark."""
    bare = {name.removeprefix("lark") for name in names[1]}
    return attribute_lines(names[0]), attribute_lines(bare | {f"lark{name}" for name in bare})


def _read(entry: LiveAds, text: str) -> classad2.ClassAd:
    try:
        return parse_ad(text)[0]
    except AdError as error:
        # It was stored by a version that accepted it.
        event("an ad in the database cannot be read any more", level=WARNING, job=entry.id, reason=str(error))
        return classad2.ClassAd()
