"""The workers that are played renew what they have, and tell whether a controller answers."""

from __future__ import annotations

import asyncio
import json
import time

from tests.chaos.log import Log
from tests.chaos.workload import STAYING, Workload

PATIENCE = 120.0


class Controller:
    """Takes every run in; ``answers`` is whether it answers anything at all."""

    def __init__(self) -> None:
        self.answers = True
        self.posted = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        await reader.readexactly(int(head.lower().split("content-length:", 1)[1].split("\r\n", 1)[0]))
        if self.answers:
            status = 201 if head.startswith(("POST /v1/jobs ", "POST /v1/jobs?")) else 200
            said = json.dumps({"id": "1", "addresses": [], "state": "enforced"}).encode()
            writer.write(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%s" % (status, len(said), said))
            if status == 201:
                self.posted.set()
        writer.close()


async def standing_after(answers: bool) -> tuple[bool, bool]:
    """For one worker that keeps its first run: renewals were answered, and the run stands for certain."""
    controller, log = Controller(), Log(10 * PATIENCE)
    server = await asyncio.start_server(controller.serve, "127.0.0.1", 0)
    workload = Workload(log, (server.sockets[0].getsockname()[1],), "token", 1, STAYING, 2, lambda _: "version: 1")
    workload.start()
    try:
        async with asyncio.timeout(PATIENCE):
            await controller.posted.wait()
            while f"chaos#{STAYING}.1#1" not in log.standing(time.monotonic()):
                await asyncio.sleep(0.01)
            await workload.rest()
            controller.answers = answers
            renewed = await workload.renew()
        return renewed, f"chaos#{STAYING}.1#1" in log.standing(time.monotonic())
    finally:
        await workload.stop()
        server.close()


def test_a_controller_that_answers_every_renewal_has_come_back() -> None:
    assert asyncio.run(standing_after(answers=True)) == (True, True)


def test_a_controller_that_answers_nothing_has_not() -> None:
    answered, _ = asyncio.run(standing_after(answers=False))
    assert not answered
