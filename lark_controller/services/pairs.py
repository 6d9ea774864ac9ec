"""Advice on reserved flows, by pair: of a job, or of a whole application. Called by REST threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from lark_controller.accounting.pairs import PairLedger, PairUse
from lark_controller.api.usage import AdvisedPair, PairsAdvice, PairsSummary
from lark_controller.jobs.job import Job
from lark_controller.policies.switches import WAN
from lark_controller.qos.pair_advice import figure_for_all, pair_advice, summary
from lark_controller.services.job_names import full_name
from lark_controller.services.jobs import Jobs
from lark_controller.services.node_patterns import MOST_NODES, node_of
from lark_controller.services.reservations import Reservations
from lark_controller.store import BATCH, Store

# Pairs of an answer: as many as a pattern in a submit file may have. Each takes a few hundred bytes.
MOST_PAIRS: Final = 4_096
NOTHING: Final = "nothing was reserved for what it sends, or that is not counted, or not kept any more"


class Pairs:
    """The pairs of jobs, live or ended; thread-safe. All raise StoreError where the database is away."""

    def __init__(self, store: Store, ledger: PairLedger, jobs: Jobs, reservations: Reservations) -> None:
        self._store, self._ledger = store, ledger
        self._jobs, self._reservations = jobs, reservations

    def advice(self, job_id: str, application: bool) -> PairsAdvice:
        """Advice for each pair of a job, or of the whole ``application`` that it is a part of. Raises
        NotFoundError."""
        job = self._jobs.live(job_id) or self._jobs.found(job_id)
        senders = self._application(job) if application else [job]
        uses = self._uses(senders)
        every = [(sender, use) for sender in sorted(senders, key=_order) for use in uses.get(sender.number, ())]
        shown = every[:MOST_PAIRS]
        peers = self._peers(job.owner, senders, [use for _, use in shown])
        rates: dict[tuple[str, str], float | None] = {}
        found: list[AdvisedPair] = []
        for sender, use in shown:
            # To the WAN each job may have a path of its own.
            path = (sender.id if use.node == WAN else sender.host.lower(), use.node)
            if path not in rates:
                rates[path] = self._reservations.path_rate(sender, use.node)
            found.append(_advised(sender, peers.get(use.peer), use, rates[path]))
        # Each pair of a job has the number of its reservations that are left out.
        left_out = sum(max((use.left_out for use in pairs), default=0) for pairs in uses.values())
        left_out += len(every) - len(shown)
        found.sort(key=lambda each: (each.node is None, each.node or 0, each.peer_node or 0))
        named = [(each.name, each.advice) for each in found]
        return PairsAdvice(
            jobs=len(senders),
            pairs=tuple(found),
            left_out=left_out,
            sentence=summary(named, left_out) if found else NOTHING,
            advised=figure_for_all([each.advice for each in found]) if found else None,
        )

    def summary(self, job: Job) -> PairsSummary | None:
        """The pairs of a job in a sentence, for its ad; None where it has none. The nodes of a parallel job have one ad
        together: in it are the pairs of all, which node 0 alone is asked for."""
        node = node_of(job)
        # A job's worker asks at its end: where nothing was reserved, that needs no database.
        if node or (node is None and job.live and not self._ledger.has(job.number)):
            return None
        found = self.advice(job.id, application=node == 0)
        return PairsSummary(found.sentence, found.advised) if found.pairs else None

    def _application(self, job: Job) -> list[Job]:
        """The jobs of an application: the nodes of a parallel job; of any other job those at the ends of its pairs."""
        if node_of(job) is not None:
            runs = self._store.runs.with_global_id(job.run.global_job_id, MOST_NODES, job.owner)
            # One that has registered just now may not be there yet.
            return list({each.id: each for each in (job, *runs) if each.run.started == job.run.started}.values())
        uses = self._uses([job]).get(job.number, ())
        # Another user's job is another application, whoever has reserved something to it.
        ids = {use.peer for use in uses if use.peer}
        ids |= set(self._store.usage.senders_to(job.id, job.owner, MOST_NODES))
        ids |= {each.job for each in self._reservations.towards(job.id) if each.job is not None}
        others = self._owned(ids - {job.id}, job.owner)
        return [job, *sorted(others, key=_order)[: MOST_NODES - 1]]

    def _owned(self, ids: Collection[str], owner: str) -> list[Job]:
        """The jobs of an owner among these ids, live or ended."""
        live = [job for each in ids if (job := self._jobs.live(each)) is not None]
        missing = sorted(set(ids) - {job.id for job in live})
        found = [job for job in live if job.owner == owner]
        for start in range(0, len(missing), BATCH):
            found += self._store.runs.with_ids(missing[start : start + BATCH], owner)
        return found

    def _uses(self, jobs: Iterable[Job]) -> dict[int, tuple[PairUse, ...]]:
        """The use of the pairs of jobs, by the job's number."""
        found: dict[int, tuple[PairUse, ...]] = {}
        missing = []
        for job in jobs:
            here = self._ledger.of_job(job.number)
            if here is None:
                missing.append(job.number)
            else:
                found[job.number] = here
        return found | self._store.usage.pairs_of(missing) if missing else found

    def _peers(self, owner: str, senders: Iterable[Job], uses: Iterable[PairUse]) -> dict[str, Job]:
        """The jobs of the same owner at the other ends, by id."""
        found = {job.id: job for job in senders}
        others = {use.peer for use in uses if use.peer} - found.keys()
        return found | {job.id: job for job in self._owned(others, owner)}


def _advised(sender: Job, peer: Job | None, use: PairUse, carried: float | None) -> AdvisedPair:
    """A pair with its advice; ``peer`` is the job at its other end where that is the same user's."""
    together = peer is not None and _run(peer) == _run(sender)
    node, peer_node = node_of(sender), node_of(peer) if together and peer is not None else None
    here = f"job {full_name(sender)}" if node is None else f"node {node}"
    if node is not None and peer_node is not None:
        there = f"node {peer_node}"
    elif peer is not None:
        there = f"job {full_name(peer)}"
    else:
        there = f"a job on {use.node}" if use.peer else use.target or use.node
    return AdvisedPair(
        name=f"{here} to {there}",
        job=sender.id,
        node=node,
        peer=use.peer or None,
        peer_node=peer_node,
        own_peer=peer is not None,
        destination=use.node,
        advice=pair_advice(use, carried),
    )


def _run(job: Job) -> tuple[str, int]:
    return job.run.global_job_id, job.run.started


def _order(job: Job) -> tuple[int, int]:
    node = node_of(job)
    return MOST_NODES if node is None else node, job.number
