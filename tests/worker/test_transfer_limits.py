"""Limits, marks and blocks of transfers in a real kernel: connections of starters' copies to a host behind an interface
or a bridge of this one, beside others at the same moment."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.namespaces import Host, Net
from lark_common.transfers import SharedRate, Treatment
from lark_worker.errors import NetworkError
from lark_worker.network.commands import inside, run
from lark_worker.transfers import enforcement
from lark_worker.transfers.limits import BURST
from lark_worker.transfers.sockets import Sockets
from tests.fixtures.service import wait
from tests.worker.test_transfers import Site, Starter

TABLE = "lark_transfers"
OWN = {4: "10.77.0.1", 6: "2001:db8:77::1"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()
    subprocess.run(["nft", "delete", "table", "inet", TABLE], check=False, capture_output=True)


@pytest.fixture
def net() -> Iterator[Net]:
    with Net() as made:
        yield made


def attached(net: Net, kind: str) -> Host:
    """A host outside; this one has its addresses on the interface towards it, or on a bridge that the interface is a
    port of."""
    far = net.host("far", addresses=["10.77.0.2/24", "2001:db8:77::2/64"])
    device = far.port
    if kind == "bridge":
        device = net.bridge("b")
        run(["ip", "link", "set", far.port, "master", device, "up"])
    Path(f"/proc/sys/net/ipv6/conf/{device}/disable_ipv6").write_text("0")
    run(["ip", "addr", "add", f"{OWN[4]}/24", "dev", device])
    run(["ip", "addr", "add", f"{OWN[6]}/64", "dev", device, "nodad"])
    run(["ip", "link", "set", device, "up"])
    return far


class Peer:
    """Sends without end to who sends it an ``s`` first, and takes all that others send."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listening = socket.create_server((address, 0), family=family)
        self.address, self.port = address, self._listening.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            data = bytes(1 << 18)
            if connection.recv(1) == b"s":
                while True:
                    connection.sendall(data)
            while connection.recv(1 << 18):
                pass

    def close(self) -> None:
        self._listening.close()


@contextmanager
def listening(far: Host, version: int = 4) -> Iterator[Peer]:
    made: list[Peer] = []
    address = far.ipv4 if version == 4 else far.ipv6
    inside(far.namespace, lambda: made.append(Peer(address)))
    yield made[0]
    made[0].close()


def move(starter: Starter, peer: Peer, way: str) -> None:
    """A copy that sends or receives as fast as it can, until it is killed or its connection ends."""
    work = "connection.sendall(bytes(1 << 18))" if way == "out" else "connection.recv(1 << 18) or os._exit(0)"
    starter.do(
        "child = os.fork()\\nif child: kept.append(child)\\nelse:\\n"
        f" try:\\n  connection = socket.create_connection(({peer.address!r}, {peer.port}))\\n"
        f"  connection.sendall({b'r' if way == 'out' else b's'!r})\\n  while True: {work}\\n"
        " except BaseException: os._exit(0)"
    )


def kill(starters: Iterable[Starter]) -> None:
    for each in starters:
        each.do("[(os.kill(child, 9), os.waitpid(child, 0)) for child in kept]; kept.clear()")


def moved(site: Site, starter: Starter) -> int:
    return sum(site.moved(starter))


def at_once(site: Site, starters: list[Starter], seconds: float = 2.0) -> list[int]:
    """Bytes that these move in the same stretch of time."""
    before = [moved(site, each) for each in starters]
    time.sleep(seconds)
    return [moved(site, each) - was for each, was in zip(starters, before, strict=True)]


def table() -> str:
    listed = subprocess.run(["nft", "list", "table", "inet", TABLE], check=False, capture_output=True, text=True)
    return listed.stdout


@pytest.mark.parametrize(
    ("kind", "version", "way"),
    [("interface", 4, "out"), ("interface", 6, "in"), ("bridge", 6, "out"), ("bridge", 4, "in")],
)
def test_a_rate_is_each_jobs_own_and_others_have_none(site: Site, net: Net, kind: str, version: int, way: str) -> None:
    far = attached(net, kind)
    slow, fast, free = site.starter(), site.starter(), site.starter()
    site.transfers.treat({slow.key: Treatment(rate=8_000_000), fast.key: Treatment(rate=40_000_000)})
    with listening(far, version) as peer:
        for starter in (slow, slow, fast, free):
            move(starter, peer, way)
        wait(lambda: site.transfers.followed == 4)
        wait(lambda: table().count("goto") == 6)
        # The looks that saw what was sent before the table was there are over.
        first = moved(site, slow), moved(site, fast)
        wait(lambda: moved(site, slow) > first[0] and moved(site, fast) > first[1])
        began, start = time.monotonic(), moved(site, slow)
        # The bucket that each begins with is a second's rate and the burst.
        buckets = 1_000_000 + BURST, 5_000_000 + BURST
        wait(lambda: moved(site, slow) - first[0] > buckets[0] and moved(site, fast) - first[1] > buckets[1], limit=60)
        jobs = [slow, fast, free]
        before = [moved(site, each) for each in jobs]

        def seen() -> list[int]:
            return [moved(site, each) - was for each, was in zip(jobs, before, strict=True)]

        time.sleep(2.0)
        # A short stretch may lack one look on a machine that does much else; in a long one that is nothing.
        wait(lambda: 4 <= (found := seen())[1] / max(1, found[0]) <= 6, limit=60)
        few, more, many = seen()
        limited, spent = moved(site, slow) - start, time.monotonic() - began
        kill(jobs)
    # Both connections of one job together have its rate; five times as much is five times as much.
    assert 3 <= more / few <= 8
    assert many > 2 * more
    # Whatever the machine was busy with: no more than rate and bucket.
    assert limited < 1_000_000 * spent + buckets[0]


@pytest.mark.parametrize(("version", "way"), [(4, "out"), (6, "in")])
def test_jobs_share_a_limit_and_who_ends_or_comes_changes_nothing_of_it(
    site: Site, net: Net, version: int, way: str
) -> None:
    far = attached(net, "interface")
    group, point = SharedRate("group cms", 16_000_000), SharedRate("access point ap1", 32_000_000)
    one, two, three, free = (site.starter() for _ in range(4))
    site.transfers.treat({each.key: Treatment(shared=(group, point)) for each in (one, two)})
    # Of another group, but of the same access point; and with a limit of its own besides.
    site.transfers.treat({three.key: Treatment(rate=24_000_000, shared=(point,))})
    with listening(far, version) as peer:
        for starter in (one, two, three, free):
            move(starter, peer, way)
        wait(lambda: site.transfers.followed == 4)
        wait(lambda: table().count("goto") == 6)
        # The looks that saw what was sent before the table was there are over.
        first = [moved(site, each) for each in (one, two, three)]
        wait(lambda: all(moved(site, each) > was for each, was in zip((one, two, three), first, strict=True)))
        began, start = time.monotonic(), [moved(site, each) for each in (one, two, three)]
        # Until all buckets are empty: each holds a second's rate and the burst.
        wait(lambda: moved(site, one) + moved(site, two) - start[0] - start[1] > 4_000_000 + 2 * BURST, limit=90)
        wait(lambda: moved(site, free) > 20_000_000, limit=60)
        kill([two])
        wait(lambda: site.transfers.followed == 3)
        second = [moved(site, each) for each in (one, three)]
        wait(lambda: moved(site, one) > second[0] and moved(site, three) > second[1], limit=60)
        grown = [moved(site, each) - was for each, was in zip((one, two, three), start, strict=True)]
        spent = time.monotonic() - began
        kill([one, three, free])
    # No more than rate and bucket, each of the shared limits and the job's own, whatever the machine was busy with.
    assert grown[0] + grown[1] < 2_000_000 * spent + 2_000_000 + BURST
    assert sum(grown) < 4_000_000 * spent + 4_000_000 + BURST
    assert grown[2] < 3_000_000 * spent + 3_000_000 + BURST
    # While a job has the limit its bucket is there, with a chain a direction; after that there is none.
    assert (table().count("chain so_"), table().count("chain si_")) == (2, 2)
    site.transfers.treat({each.key: None for each in (one, two)})
    wait(lambda: (table().count("chain so_"), table().count("chain si_")) == (1, 1))
    site.transfers.treat({three.key: None})
    wait(lambda: not table())


def test_the_mark_of_the_group_is_in_what_leaves_and_in_no_others(site: Site, net: Net) -> None:
    far = attached(net, "interface")
    count = "table inet seen { counter marked { } ; counter others { } ; chain c { type filter hook input priority 0 ; "
    count += "ip dscp 9 counter name marked ; ip6 dscp 9 counter name marked ; "
    count += "ip dscp 0 counter name others ; ip6 dscp 0 counter name others ; } ; }"
    net.exec(far, ["nft", count])

    def seen(name: str) -> int:
        listed = net.exec(far, ["nft", "list", "counter", "inet", "seen", name]).stdout
        return int(listed.split("packets ")[1].split()[0])

    def grown(name: str, before: int) -> None:
        wait(lambda: seen(name) > before + 10)

    one, other = site.starter(), site.starter()
    for version in (4, 6):
        with listening(far, version) as peer:
            before = seen("marked")
            site.transfers.treat({one.key: Treatment(dscp=9, rate=10_000_000)})
            move(other, peer, "out")
            wait(lambda: site.transfers.followed == 1)
            assert seen("marked") == before
            move(one, peer, "out")
            grown("marked", before)
            kill([one])
            wait(lambda: site.transfers.followed == 1)
            marked, others = seen("marked"), seen("others")
            grown("others", others)
            assert seen("marked") == marked
            kill([other])
            wait(lambda: site.transfers.followed == 0)
    # The job's chains stay for its next transfer; of those that have ended there is nothing.
    wait(lambda: "goto" not in table())


@pytest.mark.parametrize("way", ["in", "out"])
@pytest.mark.parametrize("can_end", [True, False])
def test_a_blocked_transfer_ends_and_others_go_on(
    site: Site, net: Net, can_end: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_end:

        def refuse(*_: object) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(Sockets, "destroy", refuse)
    far = attached(net, "interface")
    blocked, other = site.starter(), site.starter()
    with listening(far) as peer, listening(far, 6) as peer6:
        for each in (peer, peer6):
            move(blocked, each, way)
            move(other, each, way)
        wait(lambda: site.transfers.followed == 4)
        site.transfers.treat({blocked.key: Treatment(block=True)})
        if can_end:
            wait(lambda: site.transfers.followed == 2)
        else:
            # A kernel that ends no connections lets nothing pass all the same.
            wait(lambda: table().count("goto") == 4)
            wait(lambda: at_once(site, [blocked], 0.3) == [0])
        assert at_once(site, [other], 1.0)[0] > 0
        kill([blocked, other])


def test_a_service_that_is_killed_finds_its_limits_again_and_what_is_left_over_is_taken_away(
    site: Site, net: Net
) -> None:
    far, starter = attached(net, "interface"), site.starter()
    treatment = Treatment(rate=8_000_000)
    site.transfers.treat({starter.key: treatment})
    with listening(far) as peer:
        move(starter, peer, "out")
        wait(lambda: table().count("goto") == 2)
        site.transfers.written({starter.key})
        run(["nft", "add", "rule", "inet", TABLE, "sent", "counter"])
        # The controller is not asked for this.
        site.again()
        wait(lambda: table().count("goto") == 2 and "counter" not in table())
        wait(lambda: site.transfers.in_place(starter.key) == (treatment, ""))
        # Who flushes all rules, as many sites' own begin, does not open it either.
        run(["nft", "flush", "ruleset"])
        wait(lambda: table().count("goto") == 2)
        kill([starter])
        wait(lambda: "goto" not in table())
        site.transfers.treat({starter.key: None})
        wait(lambda: not table())
        # A table of a life of the service of which nothing is known any more.
        run(["nft", "add", "table", "inet", TABLE])
        (site.folder / "state" / "transfers").write_text("{}")
        site.again()
        wait(lambda: not table())


def test_a_kernel_that_does_not_take_the_rules_is_said_and_asked_again(
    site: Site, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, starter = attached(net, "interface"), site.starter()
    monkeypatch.setattr(enforcement, "AGAIN_SECONDS", 0.1)

    def refuse(*_: object) -> str:
        raise NetworkError("nft -f -: Operation not supported")

    with monkeypatch.context() as without, listening(far) as peer:
        without.setattr(enforcement, "run", refuse)
        site.transfers.treat({starter.key: Treatment(rate=8_000_000)})
        move(starter, peer, "out")
        wait(lambda: "Operation not supported" in site.transfers.in_place(starter.key)[1])
        assert site.transfers.in_place(starter.key)[0] is None
        # The transfer goes on, and is counted.
        wait(lambda: moved(site, starter) > 1_000_000)
        without.undo()
        wait(lambda: site.transfers.in_place(starter.key) == (Treatment(rate=8_000_000), ""))
        wait(lambda: table().count("goto") == 2)
        kill([starter])
