"""The requests of the operator's pages to the API, with 200,000 live jobs, thrice as many ended ones, and PostgreSQL.

Each view's requests are sent one after the other over a connection that stays open. Beside the time stands the
processor's time that the controller spent, which does not depend on what else the machine does.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psycopg

from bench.changes import fill
from bench.http import Client
from bench.percentiles import percentile
from bench.population import WORKERS, jobs, policy_text
from bench.process import Lark
from bench.switches import Switches
from lab.postgres import PostgresServer
from lark_controller.jobs.job import Job

BLOCK: Final = 22
# Runs that have ended, for each live one.
ENDED: Final = 3
REFUSED: Final = 2000
# The reference: the least that the API answers to a token.
LEAST: Final = "/v1/token"

_ENDED: Final = """
INSERT INTO runs ({columns}, id, live, state, reason, lease_until, created_at, ended_at)
SELECT {columns}, substr(md5(id || {turn}), 1, 16), false, {state}, {reason}, 0, created_at, created_at + number
FROM runs WHERE live ORDER BY number LIMIT {limit}
"""


def measure(size: int, connected: int, requests: int) -> dict[str, Any]:
    """Time each view's requests with ``size`` live jobs, and ``connected`` of 1,000 declared workers in sync."""
    # PostgreSQL's own user must be able to enter, and a socket's path must be short.
    directory = Path(tempfile.mkdtemp(prefix="lark-bench-", dir="/tmp"))
    directory.chmod(0o755)
    server = PostgresServer(_made(directory / "pg"))
    try:
        server.create()
        server.start()
        url = server.new_database()
        live = list(itertools.islice(jobs(size, BLOCK), size))
        text = _declared(policy_text(BLOCK))
        fill(url, text, live)
        _with_history(url)
        settings = {"lease_seconds": "86400", "switch_timeout": "60", "database_url": url}
        with (
            Lark(_made(directory / "state"), text, **settings) as controller,
            Switches(controller.openflow, connected),
        ):
            shown = next(job for job in live if job.datapath is not None and 1 < job.datapath <= connected)
            other = next(job for job in live if job.owner == shown.owner and job.id != shown.id)
            rows = asyncio.run(_ask(controller, _views(shown, other.id), requests))
        return {"jobs": size, "ended": ENDED * size, "workers": WORKERS, "connected": connected, "views": rows}
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _views(shown: Job, other: str) -> dict[str, tuple[str, ...]]:
    """The requests of each view, about one job and what it belongs to."""
    job, owner = shown.id, shown.owner
    some = "order=newest&limit"
    here = f"/v1/switches/{shown.datapath or 0:016x}"
    week = f"from={int(time.time()) - 604_800}&bucket=hour&limit=2000"
    return {
        "overview": (
            "/v1/overview", "/v1/groups", "/v1/rates?by=user&limit=5", "/v1/audit?limit=12",
            *(f"/v1/jobs?state={state}&{some}=8" for state in ("quarantined", "pending", "refused")),
        ),
        "jobs, newest": (f"/v1/jobs?state=live&{some}=50",),
        "jobs of a user, any state": (f"/v1/jobs?owner={owner}&state=any&{some}=50",),
        "jobs of a user in a group": (f"/v1/jobs?owner={owner}&group={shown.group}&{some}=50",),
        "jobs of a host": (f"/v1/jobs?host=worker7&{some}=50",),
        "a job": (f"/v1/jobs/{job}", f"/v1/audit?subject={job}&limit=20", f"/v1/reservations?job={job}"),
        "a job's flows": (f"{here}/flows?job={job}",),
        "a user": (
            f"/v1/jobs?owner={owner}&state=live&{some}=25", f"/v1/jobs?owner={owner}&state=refused&{some}=5",
            f"/v1/jobs?owner={owner}&state=ended&{some}=10", "/v1/rates?by=user&limit=1000",
            f"/v1/usage?by=user&user={owner}%40example&{week}",
        ),
        "a group": ("/v1/groups", f"/v1/jobs?group=group_05&{some}=25", f"/v1/usage?by=group&group=group_05&{week}"),
        "switches": ("/v1/switches",),
        "a switch": (here,),
        "a worker's flows": (f"{here}/flows",),
        "a worker's flows with a word": (f"{here}/flows?text={owner}",),
        "1,000 of a worker's flows": (f"{here}/flows?limit=1000",),
        "the core's flows": ("/v1/switches/core1/flows",),
        "reservations": ("/v1/links", "/v1/reservations?limit=50"),
        "explain": (f"/v1/explain?src={job}&dst={other}",),
        "policy": ("/v1/policy",),
        "events": ("/v1/audit?limit=100",),
    }  # fmt: skip


async def _ask(controller: Lark, views: dict[str, tuple[str, ...]], requests: int) -> list[dict[str, Any]]:
    client = Client(controller.rest, controller.token)
    await client.open(1)
    rows = []
    for name, paths in views.items():
        took: list[float] = []
        least: list[float] = []
        size = 0
        before = controller.processor_seconds()
        for _ in range(requests):
            millis, _ = await _timed(client, LEAST)
            least.append(millis)
            answers = [await _timed(client, path) for path in paths]
            # A page sends its requests side by side: what it waits for is the slowest.
            took.append(max(millis for millis, _ in answers))
            size = sum(length for _, length in answers)
        spent = (controller.processor_seconds() - before) / requests
        took.sort()
        least.sort()
        rows.append(
            {"view": name, "requests": len(paths), "p50": percentile(took, 50), "p95": percentile(took, 95),
             "least": percentile(least, 50), "processor": spent * 1000, "bytes": size}
        )  # fmt: skip
    client.close()
    return rows


async def _timed(client: Client, path: str) -> tuple[float, int]:
    """Milliseconds until the answer was there, and its length in bytes."""
    started = time.perf_counter()
    answer = await client.request("GET", path)
    millis = (time.perf_counter() - started) * 1000
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {answer.body!r}")
    return millis, len(answer.body)


def _declared(text: str) -> str:
    """The policy with every worker declared, as a site does that limits its rules."""
    workers = "".join(
        f'  w{number}: {{datapath: "{number:016x}", role: edge, host: worker{number}, max_rules: 8000}}\n'
        for number in range(1, WORKERS + 1)
    )
    return text.replace("policies:", f"{workers}policies:", 1)


def _with_history(url: str) -> None:
    """Runs that have ended or were refused, and the audit trail of all of them."""
    made = {"id", "live", "state", "reason", "lease_until", "created_at", "ended_at", "number"}
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("SELECT column_name FROM information_schema.columns WHERE table_name = 'runs'")
        columns = ", ".join(name for (name,) in found if name not in made)
        connection.execute("SELECT setval(pg_get_serial_sequence('runs', 'number'), (SELECT max(number) FROM runs))")
        for turn in range(ENDED):
            values = {"state": "'ended'", "reason": "'ended by its hook'", "limit": "ALL"}
            connection.execute(_ENDED.format(columns=columns, turn=f"'{turn}'", **values))
        values = {"state": "'refused'", "reason": "'core1 takes 4096 rules'", "limit": str(REFUSED)}
        connection.execute(_ENDED.format(columns=columns, turn="'refused'", **values))
        connection.execute(
            "INSERT INTO audit (at, actor, action, subject, detail) SELECT created_at, 'hook', 'register', id, "
            "global_job_id || ' of ' || owner || ' on ' || slot FROM runs ORDER BY number"
        )
        connection.execute("ANALYZE")


def _made(path: Path) -> Path:
    path.mkdir()
    return path
