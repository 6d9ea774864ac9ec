"""What tests of the OpenFlow side share: a handler that writes down what it is told, a server for fake switches."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import Changes, Flow, FlowData, FlowKey, Output, match
from lark_controller.openflow.applies import FlowError
from lark_controller.openflow.connection import OpenFlowOptions
from lark_controller.openflow.fake import FakeSwitch
from lark_controller.openflow.link import Dump, SwitchLink
from lark_controller.openflow.replies import FlowRemoved, PacketIn
from lark_controller.openflow.server import Server

OPTIONS = OpenFlowOptions(listen=(("127.0.0.1", 0),))
JOB = cookie(Category.JOB, 7)


def flow(number: int, **fields: int | tuple[int, int]) -> Flow:
    """A flow of job 7 with that priority, to the port of the same number."""
    return Flow(FlowKey(0, number, match(**fields)), FlowData(JOB, (Output(number),)))


def add(*flows: Flow) -> Changes:
    return Changes(flows_set=flows)


@dataclass
class Recorder:
    """Every event in order, and a way to wait for one."""

    connected: list[tuple[SwitchLink, Dump]] = field(default_factory=list)
    gone: list[tuple[int, str]] = field(default_factory=list)
    packets: list[PacketIn] = field(default_factory=list)
    removed: list[FlowRemoved] = field(default_factory=list)
    ports: list[SwitchLink] = field(default_factory=list)
    errors: list[FlowError] = field(default_factory=list)
    on_packet: Callable[[SwitchLink, PacketIn], None] | None = None
    _changed: list[asyncio.Event] = field(default_factory=list)

    async def until(self, condition: Callable[[], bool], limit: float = 20.0) -> None:
        """Wait until a condition on what was told holds; the limit only ends a test that has failed already."""
        event = asyncio.Event()
        self._changed.append(event)
        async with asyncio.timeout(limit):
            while not condition():
                event.clear()
                await event.wait()
        self._changed.remove(event)

    async def link(self, datapath: int) -> SwitchLink:
        """The link of a datapath, once connected."""
        await self.until(lambda: any(link.datapath == datapath for link, _ in self.connected))
        return next(link for link, _ in reversed(self.connected) if link.datapath == datapath)

    def _tell(self) -> None:
        for event in self._changed:
            event.set()

    def switch_connected(self, link: SwitchLink, dump: Dump) -> None:
        self.connected.append((link, dump))
        self._tell()

    def switch_gone(self, link: SwitchLink, reason: str) -> None:
        self.gone.append((link.datapath, reason))
        self._tell()

    def packet_in(self, link: SwitchLink, packet: PacketIn) -> None:
        self.packets.append(packet)
        self._tell()
        if self.on_packet is not None:
            self.on_packet(link, packet)

    def flow_removed(self, link: SwitchLink, removed: FlowRemoved) -> None:
        self.removed.append(removed)
        self._tell()

    def ports_changed(self, link: SwitchLink) -> None:
        self.ports.append(link)
        self._tell()

    def switch_error(self, link: SwitchLink, error: FlowError) -> None:
        self.errors.append(error)
        self._tell()


@asynccontextmanager
async def serving(recorder: Recorder, **changes: object) -> AsyncIterator[Server]:
    """A server on a free port of the running loop, stopped at the end."""
    server = Server(replace(OPTIONS, **changes), recorder)  # type: ignore[arg-type]  # keyword by keyword, as given
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def connected(server: Server, recorder: Recorder, fake: FakeSwitch) -> SwitchLink:
    """The link of a fake switch, once its handshake is over."""
    await fake.connect(*server.addresses[0])
    return await recorder.link(fake.datapath)


def scenario(play: Callable[[], Awaitable[None]]) -> None:
    """Play on an event loop of its own; the limit only ends a test that has failed already."""

    async def main() -> None:
        async with asyncio.timeout(60):
            await play()

    asyncio.run(main())


def on_a_switch(
    play: Callable[[Recorder, FakeSwitch, SwitchLink], Awaitable[None]],
    fake: FakeSwitch | None = None,
    **options: object,
) -> None:
    """Play with one fake switch that is connected."""

    async def main() -> None:
        recorder, switch = Recorder(), fake or FakeSwitch(1)
        async with serving(recorder, **options) as server:
            await play(recorder, switch, await connected(server, recorder, switch))

    scenario(main)


KEYS = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)


def make_authority(directory: Path, name: str) -> Path:
    """A certificate authority's certificate; its key stands beside it."""
    certificate = directory / f"{name}.pem"
    openssl("req", "-x509", "-newkey", *KEYS, "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-keyout", str(directory / f"{name}.key"), "-out", str(certificate))  # fmt: skip
    return certificate


def make_certificate(directory: Path, authority: str, name: str) -> tuple[Path, Path]:
    """(certificate, key) signed by an authority of the same directory."""
    key, request, certificate = (directory / f"{name}.{end}" for end in ("key", "csr", "pem"))
    openssl("req", "-newkey", *KEYS, "-nodes", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request))
    openssl("x509", "-req", "-days", "2", "-in", str(request), "-CA", str(directory / f"{authority}.pem"),
            "-CAkey", str(directory / f"{authority}.key"), "-CAcreateserial", "-out", str(certificate))  # fmt: skip
    return certificate, key
