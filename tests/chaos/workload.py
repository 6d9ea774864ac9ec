"""Workers that post, renew and end runs, reserve and release, and write down what was answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from bench.http import Answer
from tests.chaos.log import Asked, Entry, Log, Run
from tests.chaos.pool import OWNERS, ads

PATIENCE: Final = 8.0
RENEW_EVERY: Final = 10.0
# Seconds between a slot's requests, on average, and the runs of a slot that may have the same address.
IDLE: Final = 6.0
ATTEMPTS: Final = 4
# Of so many workers one has a job that lives to the end, so that there is one however little is answered.
STAYING: Final = 5


class Workload:
    """One client for each slot, and one that renews. Everything asked goes into ``log``; ``policies`` are the policies
    by number."""

    def __init__(
        self, log: Log, ports: Sequence[int], token: str, seed: int, workers: int, slots: int,
        policies: Callable[[int], str],
    ) -> None:  # fmt: skip
        self.log = log
        self._policies = policies
        # The controllers', the one that answered last first.
        self._ports, self._token, self._seed = list(ports), token, seed
        self._workers, self._slots = workers, slots
        self._posting = asyncio.Event()
        self._under_way = 0
        self._tasks: list[asyncio.Task[None]] = []
        # The runs that workers have, by slot; ids of jobs by the run's name.
        self._runs: dict[str, Run] = {}
        self._ids: dict[str, str] = {}
        self._turn = 0
        # Rounds of renewals that have ended, whether the last one was answered whole, and whether the next is due.
        self._rounds = 0
        self._answered = False
        self._due = asyncio.Event()

    def start(self) -> None:
        """Begin."""
        places = [(worker, number) for worker in range(1, self._workers + 1) for number in range(self._slots)]
        self._tasks = [asyncio.create_task(self._slot(*place)) for place in places]
        self._tasks.append(asyncio.create_task(self._keep()))
        self._posting.set()

    async def stop(self) -> None:
        """End all of it."""
        for task in self._tasks:
            task.cancel()
        found = await asyncio.gather(*self._tasks, return_exceptions=True)
        for error in found:
            if isinstance(error, Exception):
                raise error

    async def rest(self) -> None:
        """Ask nothing more but renewals, and wait until nothing else is under way."""
        self._posting.clear()
        while self._under_way:
            await asyncio.sleep(0.05)

    async def renew(self) -> bool:
        """Renew every run that workers have, now; whether each renewal was answered, with a yes or a no."""
        # One that is under way may have begun before.
        last = self._rounds + 2
        while self._rounds < last:
            if self._tasks[-1].done():
                # It has failed, and no round follows.
                self._tasks[-1].result()
            self._due.set()
            await asyncio.sleep(0.05)
        return self._answered

    def go_on(self) -> None:
        """Ask again."""
        self._posting.set()

    async def look(self, path: str) -> Answer:
        """Read something that no promise is about, which is not written down."""
        return await self._anywhere("GET", path, b"", "text/plain")

    async def put_policy(self) -> None:
        """Put the next policy in force."""
        self._turn += 1
        text = self._policies(self._turn)
        await self._ask(Asked.POLICY, "", "PUT", "/v1/policy", text.encode(), kind="application/yaml", says=text)

    async def _slot(self, worker: int, number: int) -> None:
        draw = random.Random(f"{self._seed} {worker} {number}")
        slot = f"slot1_{number}@worker{worker}"
        # A third of the slots brings addresses of its own, each of which several want.
        own = f"10.64.240.{(worker * self._slots + number) % 7 + 1}" if number % 3 == 0 else None
        count = 0
        while True:
            await asyncio.sleep(draw.expovariate(1 / IDLE))
            count += 1
            rate = draw.choice((None, None, 5, 20, 40))
            name = f"chaos#{worker}.{number}#{count}"
            address = own if own is None or draw.random() < 0.5 else f"10.64.241.{worker * 8 + number % 8}"
            run = Run(name, draw.choice(OWNERS), worker, slot, f"job{number}", 1_700_000_000 + count, address, rate)
            await self._posting.wait()
            self.log.begin(run)
            if not await self._post(run, draw):
                continue
            if number == 1 and worker % STAYING == 0:
                return
            await self._live(run, draw)
            if draw.random() < 0.7:
                await self._end(run)

    async def _live(self, run: Run, draw: random.Random) -> None:
        held = ""
        for _ in range(draw.randrange(5)):
            await asyncio.sleep(draw.expovariate(1 / IDLE))
            if run.name not in self._ids:
                return
            choice = draw.random()
            if choice < 0.3:
                await self._post(run, draw)
            elif choice < 0.6 and not held:
                wish = {"source": self._ids[run.name], "destination": "wan", "rate": draw.choice((1, 3, 10))}
                body = json.dumps(wish).encode()
                made = await self._work(
                    Asked.RESERVE, run.name, "POST", "/v1/reservations", body, kind="application/json"
                )
                held = made.said if made.done else ""
            elif held:
                await self._work(Asked.RELEASE, run.name, "DELETE", f"/v1/reservations/{held}", says=held)
                held = ""

    async def _post(self, run: Run, draw: random.Random) -> bool:
        """Post a run until somebody says what became of it, or a few times; whether it lives."""
        for _ in range(ATTEMPTS):
            wait = draw.choice(("", "?wait=1"))
            entry = await self._work(Asked.POST, run.name, "POST", f"/v1/jobs{wait}", ads(run))
            if entry.done and entry.state not in ("ended", "refused"):
                self._runs[run.slot] = run
                return True
            if entry.done or entry.refused:
                self._forget(run)
                break
            await asyncio.sleep(draw.uniform(0.5, 4.0))
        # Where nobody has answered, a run that was taken in before is renewed on.
        return False

    async def _end(self, run: Run) -> None:
        job_id = self._ids.get(run.name)
        self._forget(run)
        for _ in range(ATTEMPTS if job_id is not None else 0):
            entry = await self._work(Asked.END, run.name, "DELETE", f"/v1/jobs/{job_id}")
            if entry.done or entry.refused:
                return
            await asyncio.sleep(0.5)

    async def _keep(self) -> None:
        """Renew every run that workers have, again and again."""
        while True:
            began = time.monotonic()
            answered = (await self.look("/v1/switches")).status == 200
            for run in list(self._runs.values()):
                job_id = self._ids.get(run.name)
                if job_id is not None and self._runs.get(run.slot) is run:
                    entry = await self._ask(Asked.RENEW, run.name, "POST", f"/v1/jobs/{job_id}/renew")
                    answered = answered and (entry.done or entry.status == 404)
                    if entry.status == 404:
                        self._forget(run)
                await asyncio.sleep(0.01)
            self._answered, self._rounds = answered, self._rounds + 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.5, began + RENEW_EVERY - time.monotonic())):
                    await self._due.wait()
            self._due.clear()

    def _forget(self, run: Run) -> None:
        if self._runs.get(run.slot) is run:
            del self._runs[run.slot]
        self._ids.pop(run.name, None)

    async def _work(self, asked: Asked, run: str, method: str, path: str, body: bytes = b"", **more: str) -> Entry:
        await self._posting.wait()
        self._under_way += 1
        try:
            return await self._ask(asked, run, method, path, body, **more)
        finally:
            self._under_way -= 1

    async def _ask(
        self, asked: Asked, run: str, method: str, path: str, body: bytes = b"", *, kind: str = "text/plain",
        says: str = "",
    ) -> Entry:  # fmt: skip
        sent = time.monotonic()
        answer = await self._anywhere(method, path, body, kind, again=asked is not Asked.RESERVE)
        entry = Entry(asked, run, sent, time.monotonic(), answer.status, says)
        if asked in (Asked.POST, Asked.RENEW) and entry.done:
            said = answer.json
            self._ids[run] = said["id"]
            addresses = [each["address"] for each in said["addresses"]]
            entry = replace(entry, said=addresses[0] if addresses else "", state=said["state"])
        elif asked is Asked.RESERVE and entry.done:
            entry = replace(entry, said=answer.json["id"])
        self.log.add(entry)
        return entry

    async def _anywhere(self, method: str, path: str, body: bytes, kind: str, again: bool = True) -> Answer:
        """Ask one controller after the other, as workers do; ``again`` also where the answer alone may be missing."""
        answer, unknown = Answer(0, b""), False
        for port in tuple(self._ports):
            found = await _request(port, self._token, method, path, body, kind)
            if found.status == 404 and method == "DELETE" and unknown:
                # It is gone: the one that was asked before has done it, and its answer is what did not come.
                found = Answer(200, b"{}")
            if found.status == 502:
                # Handed on, and the active one has not answered: not known, as where a controller dies.
                found = Answer(0, b"")
            stands_by = found.status == 503 and b"urn:lark:problem:standby" in found.body
            if not stands_by and found.status not in (0, 503):
                if port != self._ports[0]:
                    self._ports.sort(key=lambda each: each != port)
                return found
            unknown |= found.status == 0
            # What is not known of one is not known, whatever others say that were not asked to do it.
            answer = found if answer.status == 0 or not stands_by else answer
            if not again and not stands_by:
                return found
        return answer


async def _request(port: int, token: str, method: str, path: str, body: bytes, kind: str) -> Answer:
    """Ask on a connection of its own; status 0 where no whole answer comes."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                f"{method} {path} HTTP/1.1\r\nHost: lark\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
                f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.split("content-length:", 1)[1].split("\r\n", 1)[0])
            return Answer(int(head.split(" ", 2)[1]), await reader.readexactly(length))
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return Answer(0, b"")
    finally:
        if writer is not None:
            with contextlib.suppress(RuntimeError):
                writer.transport.abort()


def summary(log: Log) -> dict[str, dict[int, int]]:
    """The number of requests by kind and status."""
    found: dict[str, dict[int, Any]] = {}
    for entry in log.entries():
        of_kind = found.setdefault(entry.asked, {})
        of_kind[entry.status] = of_kind.get(entry.status, 0) + 1
    return found
