"""The evidence of a run, gathered from outside: SQL, the played switches, and the flows that the live jobs need."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import psycopg

from bench.fleet import port_infos
from fake_switch.stored import StoredSwitch
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import PORT_LOCAL, Flow
from lark_controller.flows.placement import Switch, mac_number, place_switch
from lark_controller.jobs.job import ReservedFlow
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.qos.queues import FIRST_JOB_QUEUE, FIRST_RESERVED_QUEUE, LAST_JOB_QUEUE, MAX_QUEUE
from lark_controller.qos.worker_queues import Claim, QueueDemand, carried, flow_demand, worker_queue_plan
from lark_controller.store import Store
from lark_controller.switches.openflow import wire
from tests.chaos.checker import Bucket, Evidence, Flows, Place, Queues, Reservation, Row
from tests.chaos.log import Log
from tests.chaos.ovsdb import Servers, queues_text
from tests.chaos.pool import CORE, CORE_PORTS, capacity, edge_ports, mark
from tests.chaos.switches import Fleet, as_texts

# Of every sum that is kept; by name, since this asks the tables and not the program.
_SUMS: Final = (
    "bytes_in", "bytes_out", "packets_in", "packets_out", "wan_bytes_in", "wan_bytes_out", "wan_packets_in",
    "wan_packets_out", "policy_drops_in", "policy_drops_out", "rate_drops_in", "rate_drops_out", "throttled",
)  # fmt: skip
_TOTALS: Final = ", ".join(f"coalesce(sum({name}), 0)" for name in _SUMS)
_RUNS: Final = """
SELECT runs.number, global_job_id, id, live, ipv4, job_ad, host, port
FROM runs JOIN run_ads ON run_ads.number = runs.number
"""


def gather(url: str, fleet: Fleet, servers: Servers, log: Log) -> Evidence:
    """Everything as it is now. Raises what the databases raise; the caller asks again."""
    # Counters only grow: what was used was counted before.
    found = _from_sql(url, log)
    text = found.policy
    flows, queues = desired(url, text, fleet.slots, sorted(fleet.switches))
    return replace(
        found,
        counted=fleet.counted(),
        capacity=capacity(len(fleet.edges)),
        desired=flows,
        wanted_queues=queues,
        queues={server.number: server.queues() for server in servers.each},
        held={number: as_texts(switch.flows) for number, switch in fleet.switches.items()},
    )


def desired(url: str, policy: str, slots: int, datapaths: Sequence[int]) -> tuple[dict[int, Flows], dict[int, Queues]]:
    """The flows and rows that switches and workers' databases should hold, calculated from the store's live jobs by
    nothing but the whole calculation."""
    store = Store.open(url)
    try:
        live = list(store.runs.live())
        # No reservation here has an end of its own.
        reserved = store.reservations.flows(0.0)
    finally:
        store.close()
    of_job: dict[str, list[ReservedFlow]] = defaultdict(list)
    for each in reserved:
        if each.job is not None:
            of_job[each.job].append(ReservedFlow(each.number, each.kbps, each.target, steady=each.steady))
        if each.peer is not None:
            of_job[each.peer].append(ReservedFlow(each.number, each.kbps, incoming=True))
    in_force = load(policy)
    whole, decider = Desired(in_force), Decider(in_force)
    for job in live:
        whole.put(replace(job, reserved=tuple(of_job[job.id])), decider.decide(job.facts))
    found: dict[int, Flows] = {}
    queues: dict[int, Queues] = {}
    for number in datapaths:
        switch = _placed(policy, number, slots)
        whole.set_switch(switch)
        if number != CORE:
            queues[number] = _queues(whole, switch)
        played = StoredSwitch(number, {})
        for key, data in whole.build(number).flows.items():
            played.data_received(wire.flow_add(1, Flow(key, data)))
        found[number] = as_texts(played.flows)
    return found, queues


def _queues(whole: Desired, switch: Switch) -> Queues:
    """The queues of a worker's jobs, each of which flows choose: every queue has the first number that is its own,
    since there are fewer jobs and reservations than numbers."""
    demands: list[QueueDemand] = []
    placed = [each for each in whole.jobs_at(switch.datapath) if each.port is not None and not each.decision.isolated]
    ends = Counter(flow.number for each in placed for flow in each.job.reserved)
    floors = any(
        flow_demand(each.job, flow, 0, each.decision.bandwidth).is_floor
        for each in placed
        for flow in each.job.reserved
        if ends[flow.number] == 1
    )
    for each in placed:
        job, share = each.job, each.decision.bandwidth
        rate = None if share is None else share.rate(job.bandwidth)
        claim = Claim.of_part(job.number) if rate is None else Claim.of_job(job.number)
        queue = FIRST_JOB_QUEUE + job.number % (LAST_JOB_QUEUE - FIRST_JOB_QUEUE + 1)
        if rate is None and not floors:
            queue = 0
        demands.append(QueueDemand(claim, queue, job.port, rate))
        if queue:
            whole.set_queue(claim, queue, job.number)
        for flow in job.reserved:
            # A flow that stays inside the worker takes no uplink.
            if ends[flow.number] > 1:
                continue
            claim, queue = Claim.of_flow(flow.number), 0
            if not flow.incoming:
                queue = FIRST_RESERVED_QUEUE + flow.number % (MAX_QUEUE - FIRST_RESERVED_QUEUE + 1)
                whole.set_queue(claim, queue, job.number)
            demands.append(flow_demand(job, flow, queue, share))
    speeds = {name: switch.speeds.get(number) for name, number in switch.ports.items() if number in switch.uplinks}
    plan = worker_queue_plan(demands, carried(speeds, whole.policy, f"worker{switch.datapath}", demands))
    return {
        port: queues_text(each.rate, {number: (queue.least, queue.most) for number, queue in each.queues.items()})
        for port, each in plan.ports.items()
    }


def _placed(policy: str, number: int, slots: int) -> Switch:
    infos = port_infos(CORE_PORTS if number == CORE else edge_ports(slots))
    local = infos.get(PORT_LOCAL)
    return place_switch(
        load(policy), number, {info.name: info.number for info in infos.values()}, normal=True, tracks=True,
        local_mac=None if local is None else mac_number(local.mac), max_meter=1024, description=f"fake {number:016x}",
    )  # fmt: skip


def _from_sql(url: str, log: Log) -> Evidence:
    with closing(_connect(url)) as connection:

        def ask(query: str) -> list[tuple[Any, ...]]:
            return list(connection.execute(query).fetchall())

        rows = tuple(
            Row(number, name, run_id, bool(live), address or "", _marked(log, name, ad), _place(host, port))
            for number, name, run_id, live, address, ad, host, port in ask(_RUNS)
        )
        reservations = tuple(
            Reservation(found, kind == "job", kbps, job or "", json.loads(holds))
            for found, kind, kbps, job, holds in ask("SELECT id, kind, kbps, job, holds FROM reservations")
        )
        sums: dict[Bucket, tuple[int, ...]] = {
            (kind, seconds): tuple(map(int, total))
            for kind, seconds, *total in ask(f"SELECT kind, seconds, {_TOTALS} FROM usage GROUP BY kind, seconds")
        }
        used = {number: (out, into) for number, out, into in ask("SELECT number, bytes_out, bytes_in FROM usage_jobs")}
        policies = ask("SELECT text FROM policy_versions ORDER BY version DESC LIMIT 1")
        return Evidence(
            rows=rows, reservations=reservations, reserved=dict(ask("SELECT channel, kbps FROM reserved")), used=used,
            job_sums=tuple(map(int, ask(f"SELECT {_TOTALS} FROM usage_jobs")[0])), sums=sums,
            policy=policies[0][0] if policies else "",
        )  # fmt: skip


def _connect(url: str) -> Any:
    """A connection that sees one state of the database."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=5.0, isolation_level=None)
        connection.execute("BEGIN")
        return connection
    server = psycopg.connect(url, autocommit=True)
    server.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    return server


def _marked(log: Log, name: str, ad: str) -> bool:
    run = log.runs.get(name)
    return run is not None and mark(run) in ad


def _place(host: str, port: str | None) -> Place:
    return int(host.removeprefix("worker")), port or ""
