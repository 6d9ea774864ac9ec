"""Attacks on a controller, each in a process of its own: ``python -m bench.attacks NAME`` with a target as JSON on its
standard input, until that ends. All stay on the loopback device, and have a bound in count.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from os_ken.ofproto import ofproto_v1_3 as ofp

from bench.http import Client
from bench.load import job_mac
from fake_switch import switchside
from fake_switch.switch import FakeSwitch
from lark_controller.cli.open_files import raise_open_files
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import Flow, FlowData, FlowKey, match
from lark_controller.flows.tables import Edge
from lark_controller.switches.openflow.replies import FlowRecord, PacketIn, PortInfo

# The switch, and the job on it, that attack.
DATAPATH: Final = 0xBAD
PORT: Final = 10
ADDRESS: Final = 0x0A7F0005
# Addresses on the loopback device that are not this machine to the controller.
HERE: Final = "192.0.2.1"
STRANGER: Final = "192.0.2.2"
MOST_POSTS: Final = 400
MOST_MESSAGES: Final = 2_000_000
CONNECTIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class Target:
    """The controller's ports, and a token of a worker's hook that may read."""

    rest: int
    openflow: int
    token: str


def ads(number: int, attribute: str = "", datapath: int = DATAPATH, port: str = "job0") -> str:
    """The ads of a job of the attacker."""
    return (
        f'GlobalJobId = "submit.example#{number}.0#666"\nJobCurrentStartDate = 1\nOwner = "mallory"\n{attribute}\n'
        f'------\nMachine = "bad"\nName = "slot{number}@bad"\nLarkNetworkType = "ovs_bridge"\n'
        f'LarkAddressType = "static"\nLarkInnerAddressIPv4 = "{".".join(map(str, (ADDRESS + number).to_bytes(4)))}"\n'
        f'LarkExternalInterface = "{port}"\nLarkInnerMacAddress = "{job_mac(1).hex(":")}"\n'
        f'LarkDatapathId = "{datapath:016x}"\n'
    )


async def post_again_and_again(target: Target, attribute: str) -> None:
    """Three clients that post the attribute, and again for each answer."""

    async def one(first: int) -> None:
        client = Client(target.rest, target.token)
        for number in range(first, first + MOST_POSTS):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await client.request("POST", "/v1/jobs", ads(number, attribute, port=f"job{number}").encode())
            await asyncio.sleep(0.02)

    await asyncio.gather(*(one(1000 * (number + 1)) for number in range(3)))


async def regexp(target: Target) -> None:
    """A regular expression that takes its engine hours, in an attribute that is evaluated."""
    pattern = r'regexp("(?=(.*))(.*)(.*)\1[xy]", "' + "a" * 1500 + '")'
    await post_again_and_again(target, f"InboundConnectivity = {pattern}")


async def names(target: Target) -> None:
    """114 kB of long names."""
    await post_again_and_again(target, "InboundConnectivity = " + " + ".join(["a" * 38_000] * 3))


async def plan(target: Target) -> None:
    """Policies to plan, whose predicates take time and memory without end."""
    grown = '"aaaaaaaaaa"'
    for _ in range(9):
        grown = f'replaceAll(\\"a\\", {grown}, \\"aaaaaaaaaa\\")'.replace('\\"', '"')
    predicates = (f"size({grown}) > 1", r'regexp("(?=(.*))(.*)(.*)\1[xy]", "' + "a" * 1500 + '")')

    async def one(predicate: str) -> None:
        client = Client(target.rest, target.token)
        text = f"version: 1\npolicies:\n  - block: {{when: {json.dumps(predicate)}}}\n"
        for _ in range(MOST_POSTS):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await client.request("POST", "/v1/policy/plan", text.encode(), "application/yaml")
            await asyncio.sleep(0.02)

    await asyncio.gather(*map(one, predicates))


async def ask_again_and_again(target: Target, paths: Iterable[str], clients: int, pause: float = 0.0) -> None:
    """Clients that read, each again as soon as it has its answer."""

    async def one(path: str) -> None:
        client = Client(target.rest, target.token)
        for _ in range(MOST_MESSAGES):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await client.request("GET", path)
            await asyncio.sleep(pause)

    await asyncio.gather(*(one(path) for path, _ in zip(itertools.cycle(paths), range(clients), strict=False)))


async def directives(target: Target) -> None:
    """Policies of 16,000 directives of YAML, to check and to plan."""
    text = "".join(f"%TAG !{number:05}! b\n" for number in range(16_000))
    paths = ("/v1/policy/check", "/v1/policy/plan")

    async def one(path: str) -> None:
        client = Client(target.rest, target.token)
        for _ in range(MOST_POSTS):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await client.request("POST", path, text.encode(), "application/yaml")
            await asyncio.sleep(0.02)

    await asyncio.gather(*map(one, paths))


async def twins(target: Target) -> None:
    """Two switches with one datapath id, each in the other's place as soon as it has lost its own."""

    async def one() -> None:
        for _ in range(MOST_MESSAGES):
            with contextlib.suppress(OSError):
                switch = await FakeSwitch(DATAPATH, {1: "eth0"}).connect("127.0.0.1", target.openflow)
                await switch.closed.wait()
            await asyncio.sleep(0)

    await asyncio.gather(one(), one())


async def rules(target: Target) -> None:
    """Rules of workers, read by 64 clients as fast as the token may."""
    await ask_again_and_again(target, (f"/v1/hosts/h{number}.example/rules" for number in range(64)), 64)


async def lists(target: Target) -> None:
    """The longest lists, by sixteen clients."""
    flows = "/v1/switches/0000000000000001/flows?limit=1000"
    await ask_again_and_again(target, (flows, "/v1/jobs?limit=1000", "/v1/audit?limit=1000", "/v1/switches"), 16)


async def a_switch(target: Target, kind: type[FakeSwitch] = FakeSwitch, datapath: int = DATAPATH) -> FakeSwitch:
    """A switch of the attacker's, connected."""
    switch = kind(datapath, {1: "eth0", PORT: "job0"})
    await switch.connect("127.0.0.1", target.openflow)
    await asyncio.sleep(0.3)
    return switch


async def pour(switch: FakeSwitch, made: Callable[[int], bytes]) -> None:
    """Send messages as fast as the switch's connection takes them, a thousand at a time."""
    for number in range(0, MOST_MESSAGES, 1000):
        if switch.closed.is_set():
            return
        switch.send_raw(b"".join(map(made, range(number, number + 1000))))
        while switch.unsent > 1 << 20 and not switch.closed.is_set():
            await asyncio.sleep(0.002)
        await asyncio.sleep(0)


async def destinations(target: Target) -> None:
    """One job's packets to ever new addresses, each a PacketIn."""
    client = Client(target.rest, target.token)
    await client.request("POST", "/v1/jobs", ads(0).encode())
    switch = await a_switch(target)
    ip = bytes.fromhex("450000280000400040060000") + ADDRESS.to_bytes(4) + bytes(4)
    data = (b"\x02\0\0\2\0\1" + job_mac(1) + b"\x08\x00" + ip + bytes(20)).ljust(60, b"\0")
    sample = switchside.packet_in(0, PacketIn(0, int(Edge.SLICE_FROM), 1, PORT, 0, data))
    at = sample.index(data) + 30
    await pour(switch, lambda number: sample[:at] + (0x0A800000 + number).to_bytes(4) + sample[at + 4 :])


async def neighbours(target: Target) -> None:
    """One job's neighbour solicitations for ever new link-local addresses, each a PacketIn."""
    switch = await a_switch(target)
    link_local = b"\xfe\x80" + bytes(14)
    payload = b"\x87\0\0\0\0\0\0\0" + link_local
    header = b"\x60\0\0\0" + len(payload).to_bytes(2) + b"\x3a\xff" + link_local + b"\xff\x02" + bytes(14)
    data = b"\x33\x33\xff\0\0\1" + job_mac(1) + b"\x86\xdd" + header + payload
    sample = switchside.packet_in(0, PacketIn(0, int(Edge.SLICE_FROM), 1, PORT, 0, data))
    at = sample.index(data) + len(data) - 4
    await pour(switch, lambda number: sample[:at] + number.to_bytes(4) + sample[at + 4 :])


async def ports(target: Target) -> None:
    """Twenty thousand ports of one switch come and go, again and again."""
    switch = await a_switch(target)

    def changed(number: int) -> bytes:
        port = PortInfo(1000 + number % 20_000, f"p{number % 20_000}", "02:00:00:00:00:01", True, False)
        return switchside.port_status(0, port, ofp.OFPPR_ADD if number // 20_000 % 2 == 0 else ofp.OFPPR_DELETE)

    await pour(switch, changed)


async def reconnects(target: Target) -> None:
    """Thirty-two switches, each connected again as soon as its handshake has begun."""
    hello = b"\x04\0\0\x08\0\0\0\x01"

    async def one() -> None:
        for _ in range(MOST_MESSAGES):
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", target.openflow)
                writer.write(hello)
                await reader.read(16)
                writer.close()
            await asyncio.sleep(0)

    await asyncio.gather(*(one() for _ in range(32)))


class Endless(FakeSwitch):
    """A switch whose dump of flows never ends."""

    asked: int | None = None

    def _multipart(self, xid: int, message: bytes) -> None:
        if int.from_bytes(message[8:10]) == ofp.OFPMP_FLOW:
            self.asked = xid
        else:
            super()._multipart(xid, message)


async def dumps(target: Target) -> None:
    """Four switches whose dumps never end, of flows that were not asked for."""
    flow = Flow(FlowKey(0, 5, match(in_port=1)), FlowData(1))
    await _dump_without_end(target, [switchside.flow_record(FlowRecord(flow.key, flow.data, 1, 1, 1.0)) * 500])


async def stale(target: Target) -> None:
    """Four switches whose dumps never end, of ever other flows with the controller's own cookies."""
    data = FlowData(cookie(Category.JOB, 1 << 30))
    keys = [FlowKey(0, 5, match(eth_type=0x800, ipv4_dst=number)) for number in range(40_000)]
    records = [switchside.flow_record(FlowRecord(key, data, 1, 1, 1.0)) for key in keys]
    await _dump_without_end(target, [b"".join(records[first : first + 400]) for first in range(0, len(records), 400)])


async def _dump_without_end(target: Target, parts: list[bytes]) -> None:
    async def one(datapath: int) -> None:
        for _ in range(50):
            switch = await a_switch(target, Endless, datapath)
            assert isinstance(switch, Endless)
            following = itertools.cycle(parts)
            while not switch.closed.is_set():
                if switch.asked is not None and switch.unsent < 1 << 20:
                    part = next(following)
                    switch.send_raw(switchside.multipart_reply(switch.asked, ofp.OFPMP_FLOW, part, more=True))
                await asyncio.sleep(0.001)

    await asyncio.gather(*(one(DATAPATH + number) for number in range(4)))


async def connections(target: Target) -> None:
    """A thousand connections of a stranger without a token, each opened again when it is closed."""

    async def one() -> None:
        for _ in range(200):
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(HERE, target.rest, local_addr=(STRANGER, 0))
                await reader.read()
                writer.close()
            await asyncio.sleep(0.05)

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))


async def blanks(target: Target) -> None:
    """Requests of a stranger with 32 kB of blanks before the value of a field, by two clients."""
    await _strangers(target, [b"GET /healthz HTTP/1.1\r\nHost: x\r\nX:" + b" " * 32_000 + b"x\r\n\r\n"], 2)


async def chunks(target: Target) -> None:
    """Bodies of a stranger in chunks of one byte, by four clients."""
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    await _strangers(target, [head, *[b"1\r\nx\r\n" * 2_000] * 100], 4)


async def _strangers(target: Target, pieces: Sequence[bytes], clients: int) -> None:
    """Connections of a stranger without a token, on each of which the pieces are sent until it is closed."""

    async def one() -> None:
        for _ in range(MOST_MESSAGES):
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(HERE, target.rest, local_addr=(STRANGER, 0))
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                await reader.read(4096)
                writer.close()
            await asyncio.sleep(0.002)

    await asyncio.gather(*(one() for _ in range(clients)))


async def mistakes(target: Target) -> None:
    """Bodies of a worker of 256 kB with tens of thousands of mistakes, by four clients."""
    body = json.dumps({"jobs": [0] * 87_000}).encode()

    async def one() -> None:
        client = Client(target.rest, target.token)
        for _ in range(MOST_MESSAGES):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await client.request("POST", "/v1/hosts/bad/leases", body, "application/json")

    await asyncio.gather(*(one() for _ in range(4)))


async def nothing(target: Target) -> None:
    """No attack from here."""


ATTACKS: Final[dict[str, Callable[[Target], Coroutine[Any, Any, None]]]] = {
    each.__name__: each
    for each in (
        regexp,
        names,
        plan,
        directives,
        rules,
        lists,
        destinations,
        connections,
        reconnects,
        twins,
        ports,
        neighbours,
        dumps,
        stale,
        blanks,
        chunks,
        mistakes,
        nothing,
    )
}


async def run(name: str, target: Target) -> None:
    """Attack until the standard input ends."""
    raise_open_files()
    attack = asyncio.create_task(ATTACKS[name](target))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    attack.cancel()
    with contextlib.suppress(asyncio.CancelledError, OSError):
        await attack


def line(target: Target) -> bytes:
    """The target as the program takes it."""
    return json.dumps(asdict(target)).encode() + b"\n"


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Target(**json.loads(sys.stdin.readline()))))
