"""The rates that the jobs of one cluster hold of the network's links."""

from __future__ import annotations

import json
from typing import Final

from sqlalchemy import Connection, select

from lark_controller.qos.admission import ChannelRates
from lark_controller.store.schema import LIVE, reservations, runs

# Live jobs of a cluster that are looked at: it is done for every refusal, while other posts wait.
MOST_OF_CLUSTER: Final = 256


def rates_of_cluster(connection: Connection, job_id: str | None, but: int | None) -> ChannelRates | None:
    """The rates that live jobs of a job's cluster hold, ``but`` for the reservation of that number; None: not looked
    for, since they are more than :data:`MOST_OF_CLUSTER`."""
    query = select(runs.c.id, runs.c.owner, runs.c.global_job_id)
    asks = select(runs.c.cluster).where(runs.c.id == job_id).scalar_subquery()
    jobs = connection.execute(query.where(runs.c.cluster == asks, LIVE).limit(MOST_OF_CLUSTER + 1)).all()
    if len(jobs) > MOST_OF_CLUSTER:
        return None
    # Each access point counts its clusters from 1 on.
    called = {each.id: (each.owner, each.global_job_id.partition("#")[0]) for each in jobs}
    same = [each for each, name in called.items() if name == called.get(job_id)]
    held: dict[str, int] = {}
    for row in connection.execute(
        select(reservations.c.number, reservations.c.holds).where(reservations.c.job.in_(same))
    ):
        for key, kbps in json.loads(row.holds).items() if row.number != but else ():
            held[key] = held.get(key, 0) + kbps
    return held
