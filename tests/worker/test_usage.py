"""A job's usage of the network, as the worker counts it and as HTCondor gets it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lark_worker.controller_link import Advised, ControllerLink, Headroom
from lark_worker.errors import AwayError, StarterError
from lark_worker.records.known_jobs import KnownJobs
from lark_worker.records.records import Record
from lark_worker.settings import load
from lark_worker.transfers.book import NOTHING, Sums
from lark_worker.usage import metering
from lark_worker.usage.chirp import set_attributes
from lark_worker.usage.counters import Counted, JobUse
from lark_worker.usage.slots import Use, attribute, names, text, write
from tests.worker.pool import Pool, Starter, eventually
from tests.worker.test_jobs import value

MOVED = Sums(4_000_000, 1_000_000, 500_000, 0, 2000)


def test_rates_are_those_between_two_readings_and_of_a_short_time_those_of_the_whole() -> None:
    meter = JobUse(began=0.0, at=0.0).reading(Counted(1_000_000, 500_000, 10, 5), 10.0)
    assert (meter.rate_in, meter.rate_out, meter.peak) == (0.8, 0.4, 0.8)
    meter = meter.reading(Counted(1_000_000, 2_500_000, 10, 20), 20.0)
    assert (meter.rate_in, meter.rate_out, meter.peak) == (0.0, 1.6, 1.6)
    assert meter.average == 1.0
    # Half a second later, a few bytes are no rate of their own.
    meter = meter.reading(Counted(1_000_000, 2_600_000, 10, 21), 20.5)
    assert round(meter.rate_out, 3) == round(2.6 * 8 / 20.5, 3)
    assert JobUse(began=5.0, at=5.0).reading(Counted(125_000, 0), 5.1).rate_in == 1.0


def test_the_slots_ads_are_for_the_startd_to_read(tmp_path: Path) -> None:
    meter = JobUse(0.0, 0.0).reading(Counted(2_000_000, 1_000_000), 8.0)
    shown = text(
        {"slot1_2@w": Use(), "slot1_1@w": Use(meter, "lark0", "eth0")},
        {attribute("group_cms.prod"): 12.5},
        1700000000,
        {"a-b.c": 3},
    )
    assert shown.splitlines() == [
        'SlotName = "slot1_1@w"', "NetworkInputMb = 2.000000", "NetworkOutputMb = 1.000000",
        "NetworkInputRate = 2.000000", "NetworkOutputRate = 1.000000", 'ExternalInterface = "lark0"',
        'InternalInterface = "eth0"', "- slot1_1@w",
        'SlotName = "slot1_2@w"', "NetworkInputMb = undefined", "NetworkOutputMb = undefined",
        "NetworkInputRate = undefined", "NetworkOutputRate = undefined", "ExternalInterface = undefined",
        "InternalInterface = undefined", "- slot1_2@w",
        "ExternalHeadroom_a_b_c = 3", "NetworkUsageTime = 1700000000", "WanHeadroom_group_cms_prod = 12.500", "- all",
    ]  # fmt: skip
    assert attribute("group_a-b.c d") == "WanHeadroom_group_a_b_c_d"
    assert attribute("ap-1.example.org", "TransferHeadroomAt") == "TransferHeadroomAt_ap_1_example_org"
    write(tmp_path / "slots", shown)
    assert (tmp_path / "slots").read_text() == shown
    assert (tmp_path / "slots").stat().st_mode & 0o777 == 0o644
    assert names(tmp_path / "slots") == {"slot1_1@w", "slot1_2@w"}
    assert names(tmp_path / "none") == set()


class Startd:
    """The ads of a startd's cron job as HTCondor 25.14 keeps them: by tag, in the order in which the tags came first,
    whether the output still has them or not. All that are a slot's are merged into its ad, later ones over earlier."""

    def __init__(self) -> None:
        self._ads: dict[str, dict[str, str]] = {}

    def take(self, output: str) -> None:
        ad: dict[str, str] = {}
        for line in output.splitlines():
            if line.startswith("-"):
                self._ads[line[1:].strip()], ad = ad, {}
            else:
                name, _, value = line.partition(" = ")
                ad[name] = value

    def slot(self, name: str) -> dict[str, str]:
        merged: dict[str, str] = {}
        for ad in self._ads.values():
            if name.startswith(ad.get("SlotName", "").strip('"')):
                merged |= ad
        return merged


def test_a_slots_ad_has_its_own_job_s_use_after_another_service_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "_uptime", lambda _started: 0.0)
    moved = [1_000_000]
    monkeypatch.setattr(metering, "read", lambda _: Counted(moved[0], 0, 9, 9))
    settings = replace(load({}), socket=tmp_path / "socket", usage_interval=3600)
    link = SimpleNamespace(wan=lambda _host, _jobs: {}, headroom=Headroom, external_headroom=dict)
    startd = Startd()

    def job(slot: int, port: str) -> Record:
        return Record(
            f"{slot:016}", slot, "boot", slot, 0, f"s#{port}", 1, f"slot1_{slot}@w", "alice", "ns", port, "",
            "ovs_bridge", "", "", machine="w", made=True,
        )  # fmt: skip

    def service(*jobs: Record) -> None:
        """A service that starts, writes once about these jobs, and ends."""
        each = metering.Metering(
            settings, SimpleNamespace(all=lambda: jobs), link,  # type: ignore[arg-type]
            lambda _: None, lambda _record, _quiet: None, lambda _: NOTHING, lambda _starter, _values: None,
        )  # fmt: skip
        each.start()
        each.stop()
        startd.take((tmp_path / "slots").read_text())

    service(job(1, "lark1"), job(2, "lark2"))
    moved[0] = 5_000_000
    service(job(2, "lark3"))
    found = startd.slot("slot1_2@w")
    assert (found["ExternalInterface"], found["NetworkInputMb"]) == ('"lark3"', "5.000000")
    # A job of which no service writes has nothing of the job that had its slot before.
    assert startd.slot("slot1_1@w")["ExternalInterface"] == "undefined"
    (tmp_path / "slots").unlink()
    service(job(2, "lark4"))
    assert startd.slot("slot1_2@w")["ExternalInterface"] == '"lark4"'


class Listening:
    """The part of a starter that takes attributes; the process is this one, which works in ``folder``."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as stream:
                for line in stream:
                    self.heard.append(line.decode().strip())
                    stream.write(b"0\n" if self.heard[0] == "cookie secret" else b"-1\n")
                    stream.flush()


@pytest.fixture
def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "scratch")
    made = Listening()
    yield made
    made.socket.close()


def test_the_wan_part_of_a_jobs_end_is_read_anew_and_at_once_where_it_has_been_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Record("1" * 16, 1, "boot", 7, 0, "s#1.0#1", 1, "slot1@w", "alice", "ns", "veth", "", "ovs_bridge", "", "")
    seen, now = [Counted(20_100_000, 20_200_000, 100, 200)], [1000.0]
    monkeypatch.setattr(metering, "read", lambda _: seen[0])
    monkeypatch.setattr(
        metering, "time", SimpleNamespace(monotonic=lambda: now[0], clock_gettime=lambda _: now[0], CLOCK_BOOTTIME=0)
    )
    asked: list[bool] = []
    told: dict[str, float | str] = {}
    advised: list[tuple[str, int | None] | Exception | None]
    advised = [None, None, None, ("enough", None), ("ask for less", 40), AwayError("not now"), ("wait", None)]

    def advice(_: Record, quiet: bool) -> Advised | None:
        asked.append(quiet)
        found = advised.pop(0)
        if isinstance(found, Exception):
            raise found
        pairs = ("2 pairs, 60 for each is enough", 60) if found == ("wait", None) else ("", None)
        return None if found is None else Advised(*found, (3_000_000 * len(asked), 1_000_000), *pairs)

    def never(_: Record) -> tuple[int, int] | None:
        raise AssertionError("a job on the bridge is not counted here")

    def set_attributes(_: int, values: Mapping[str, float | str]) -> None:
        told.clear()
        told.update(values)

    link = ControllerLink(load({}))
    each = metering.Metering(load({}), KnownJobs(tmp_path), link, never, advice, lambda _: MOVED, set_attributes)
    for pause, counted, quiet in (
        (0.0, seen[0], False),  # the first look
        (5.0, seen[0], True),
        (5.0, Counted(20_100_000, 20_300_000, 100, 300), False),
        (1.0, Counted(20_100_000, 20_300_000, 100, 300), True),
    ):
        now[0] += pause
        seen[0] = counted
        each.report_now(job)
        assert asked[-1] is quiet
    assert (told["NetworkWanInputMb"], told["NetworkWanOutputMb"]) == (12.0, 1.0)
    moved = {name: value for name, value in told.items() if name.startswith("LarkTransfer")}
    # The last ones: an access point that was configured before them refuses them, and what comes after.
    assert list(told)[-len(moved) :] == list(moved)
    assert moved == {
        "LarkTransferBytesIn": 4_000_000, "LarkTransferBytesOut": 1_000_000, "LarkTransferWanBytesIn": 500_000,
        "LarkTransferWanBytesOut": 0, "LarkTransferSeconds": 2.0, "LarkTransferRateIn": 16.0,
        "LarkTransferRateOut": 4.0,
    }  # fmt: skip
    # A controller that is away is asked again after half a minute; until then its last word stands.
    for pause, left, sentence, figure in ((1.0, 2, "ask for less", 40), (1.0, 1, "ask for less", 40),
                                          (1.0, 1, "ask for less", 40), (30.0, 0, "wait", None)):  # fmt: skip
        now[0] += pause
        each.report_now(job)
        assert (len(advised), told["LarkAdvice"], told.get("LarkAdvisedBandwidth")) == (left, sentence, figure)
        assert ("LarkMpiAdvice" in told) is ("LarkAdvisedMpiBandwidth" in told) is (sentence == "wait")
    # The last ones, for the same reason.
    assert list(told.items())[-2:] == [
        ("LarkMpiAdvice", "2 pairs, 60 for each is enough"), ("LarkAdvisedMpiBandwidth", 60),
    ]  # fmt: skip
    # Whoever asks again and again has nobody asked for him.
    before = len(asked)
    each.report_now(job)
    assert len(asked) == before


def test_the_wan_part_is_never_more_than_what_the_job_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job that only talks to the WAN, all that came between the two readings would be in the part alone."""
    job = Record("1" * 16, 1, "boot", 7, 0, "s#1.0#1", 1, "slot1@w", "alice", "ns", "veth", "", "nat", "", "")
    told: dict[str, float | str] = {}
    each = metering.Metering(
        load({}), KnownJobs(tmp_path), ControllerLink(load({})), lambda _: (2_500_000, 900_000),
        lambda _record, _quiet: None, lambda _: NOTHING, lambda _starter, values: told.update(values),
    )  # fmt: skip
    monkeypatch.setattr(metering, "read", lambda _: Counted(2_000_000, 1_000_000, 9, 9))
    each.report_now(job)
    assert {name: told[name] for name in told if name.startswith("Network")} == {
        "NetworkInputMb": 2.0, "NetworkOutputMb": 1.0, "NetworkWanInputMb": 2.0, "NetworkWanOutputMb": 0.9,
    }  # fmt: skip


def test_the_end_of_a_job_that_moved_next_to_nothing_does_not_wait_for_its_flows_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Record("1" * 16, 1, "boot", 7, 0, "s#1.0#1", 1, "slot1@w", "alice", "ns", "veth", "", "ovs_bridge", "", "")
    asked: list[bool] = []
    for counted in (Counted(), Counted(4_999, 5_000, 9, 9), Counted(5_000, 5_000, 9, 9)):
        each = metering.Metering(
            load({}), KnownJobs(tmp_path), ControllerLink(load({})), lambda _: None,
            lambda _record, quiet: asked.append(quiet), lambda _: NOTHING, lambda _starter, _values: None,
        )  # fmt: skip
        monkeypatch.setattr(metering, "read", lambda _, counted=counted: counted)
        each.report_now(job)
    assert asked == [True, True, False]


def test_the_wan_parts_of_all_jobs_of_a_worker_are_one_request_in_an_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ("ovs_bridge", "ovs_bridge", "ovs_bridge", "nat")
    jobs = {
        number: Record(
            f"{number}" * 16, number, "boot", number, 0, f"s#{number}.0#1", 1, f"slot{number}@w", "alice", "ns", "veth",
            "", kind, "", "", machine="w", made=True,
        )
        for number, kind in enumerate(kinds, 1)
    }  # fmt: skip
    now = [1000.0]
    monkeypatch.setattr(metering, "read", lambda _: Counted(9_000_000, 9_000_000, 9, 9))
    monkeypatch.setattr(metering, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0]))
    monkeypatch.setattr(metering, "_uptime", lambda _started: 0.0)
    asked: list[tuple[str, list[str]]] = []
    told: dict[int, Mapping[str, float | str]] = {}
    away = [False]

    def wan(host: str, job_ids: list[str]) -> dict[str, tuple[int, int]]:
        asked.append((host, list(job_ids)))
        if away[0]:
            raise AwayError("not now")
        return {job_id: (2_000_000 * len(asked), 1_000_000) for job_id in job_ids[:2]}

    link = SimpleNamespace(wan=wan, headroom=Headroom, external_headroom=dict)
    settings = replace(load({}), socket=tmp_path / "socket")
    each = metering.Metering(
        settings, SimpleNamespace(all=lambda: tuple(jobs.values())), link,  # type: ignore[arg-type]
        lambda _: (5_000_000, 5_000_000), lambda _record, _quiet: None, lambda _: NOTHING,
        lambda pid, values: told.update({pid: values}),
    )  # fmt: skip
    for pause in (0.0, 10.0, 10.0, 290.0, 10.0):
        now[0] += pause
        each._round(now[0])
    # At the first reading and five minutes later; a nat job is counted here, and one that is not accounted has none.
    assert asked == [("w", [f"{number}" * 16 for number in (1, 2, 3)])] * 2
    assert [told[number].get("NetworkWanInputMb") for number in (1, 2, 3, 4)] == [4.0, 4.0, None, 5.0]
    # A young one alone is asked for at every reading, the others are not.
    young = replace(jobs[1], id="5" * 16, starter=5, started=5)
    jobs[5] = young
    born = now[0]
    monkeypatch.setattr(metering, "_uptime", lambda started: born if started else 0.0)
    now[0] += 10.0
    each._round(now[0])
    assert asked[2:] == [("w", [young.id])]
    # A controller that is away is asked again later.
    away[0] = True
    now[0] += 10.0
    each._round(now[0])
    now[0] += 10.0
    each._round(now[0])
    assert len(asked) == 4
    # An external address is in the ad of a job that is not accounted, too.
    uncounted = replace(jobs[1], id="6" * 16, starter=6, accounted=False)
    jobs[6] = replace(uncounted, external=("198.51.100.64",), opened=("tcp/80",), external_name="web.x.org")
    each._round(now[0])
    expected = {"LarkExternalPorts": "tcp/80", "LarkExternalName": "web.x.org"}
    assert told[6] == {"LarkExternalAddressIPv4": "198.51.100.64", **expected}


def test_a_starter_is_told_by_the_protocol_of_its_jobs(listening: Listening) -> None:
    Path("../user/.chirp.config").write_text(f"127.0.0.1 {listening.port} secret\n")
    values: dict[str, float | str] = {"NetworkInputMb": 1.5, "no name": 1.0, "LarkAdvice": 'a "b" \\ ü'}
    set_attributes(os.getpid(), {**values, "LarkAdvisedBandwidth": 40})
    assert listening.heard == [
        "cookie secret",
        "set_job_attr_delayed NetworkInputMb 1.500000",
        # Of the ClassAd's text "a \"b\" \\ ?", each blank and backslash with a backslash in front.
        r'''set_job_attr_delayed LarkAdvice "a\ \\"b\\"\ \\\\\ ?"''',
        "set_job_attr_delayed LarkAdvisedBandwidth 40",
    ]
    set_attributes(os.getpid(), {"LarkAdvice": '"' * 10_000})
    assert len(listening.heard[-1]) < 1024


def test_without_nested_directories_the_file_is_in_the_jobs_own(listening: Listening) -> None:
    Path(".chirp.config").write_text(f"127.0.0.1 {listening.port} secret\n")
    set_attributes(os.getpid(), {})
    assert listening.heard == ["cookie secret"]


@pytest.mark.parametrize("config", ["127.0.0.1 {other} secret", "127.0.0.1 0 x", "x", "127.0.0.1 {port} wrong", ""])
def test_nothing_is_said_to_a_port_that_is_not_the_starters(listening: Listening, config: str) -> None:
    other = subprocess.Popen(
        ["python3", "-c", "import socket,sys; s=socket.create_server(('127.0.0.1',0)); print(s.getsockname()[1]);"
         "sys.stdout.flush(); s.accept(); print('spoken to')"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert other.stdout is not None
    port = int(other.stdout.readline())
    Path(".chirp.config").write_text(config.format(other=port, port=listening.port))
    with pytest.raises(StarterError):
        set_attributes(os.getpid(), {"NetworkInputMb": 1.0})
    assert [line for line in listening.heard if "set_job" in line] == []
    assert other.poll() is None
    other.kill()
    assert other.communicate()[0] == ""


def test_a_link_in_place_of_the_file_is_not_followed(listening: Listening, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(f"127.0.0.1 {listening.port} secret\n")
    Path(".chirp.config").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StarterError):
        set_attributes(os.getpid(), {})


def started(pool: Pool, more: str = "") -> tuple[Starter, str]:
    starter = pool.starter(1, "alice")
    return starter, pool.hook(starter, "start", "alice", 1, more)


@pytest.mark.ovs
def test_what_is_counted_is_what_the_interface_has_seen(pool: Pool) -> None:
    starter, said = started(pool)
    pool.inside(starter, "ping -c3 -i0.2 -W1 10.64.0.99")
    slots = pool.socket.parent / "slots"
    assert pool.worker is not None
    pool.stop_service()
    pool.start_service()
    eventually(lambda: 'SlotName = "slot1_1@worker1"' in slots.read_text())
    shown = slots.read_text()
    sent = float(re.findall(r"NetworkOutputMb = (\S+)", shown)[0])
    port = Path("/sys/class/net", value(said, "LarkExternalInterface"), "statistics")
    assert 0 < sent <= int((port / "rx_bytes").read_text()) / 1e6
    starter.kill()
    eventually(lambda: not pool.leftovers())


@pytest.mark.ovs
def test_a_job_ends_as_its_program_does(pool: Pool) -> None:
    starter, _ = started(pool)
    for status in (0, 7, 130, 143):
        assert pool.inside(starter, f"exit {status}")[0] == status
    # The shell above says 128 and the number for a program that a signal has ended.
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGPIPE):
        assert pool.inside(starter, f"kill -{int(number)} $$")[0] == 128 + number
    assert pool.inside(starter, "echo in | cat; echo end")[1].split() == ["in", "end"]
    file = starter.scratch / "environment"
    file.write_bytes(b"PATH=/bin\0")
    os.chown(file, 65534, 65534)
    status, said = starter.run(f"SUDO_UID=65534 SUDO_GID=65534 {pool.enter} {file} /nonexistent/program")
    assert status == 122
    assert "No such file" in said


@pytest.mark.ovs
def test_signals_reach_the_program(pool: Pool) -> None:
    starter, _ = started(pool)
    ready = starter.scratch / "ready"
    file = starter.scratch / "environment"
    file.write_bytes(b"PATH=/usr/bin:/bin\0")
    os.chown(file, 65534, 65534)
    program = f'trap "echo got; exit 9" TERM; touch {ready}; while :; do sleep 0.05; done'
    starter.run(
        f"(SUDO_UID=65534 SUDO_GID=65534 {pool.enter} {file} /bin/sh -c '{program}' >{starter.scratch}/out 2>&1;"
        f" echo $? >{starter.scratch}/status) & echo $!"
    )
    eventually(ready.exists)
    # The process that HTCondor knows is the one that lark-enter runs in, a child of the subshell.
    pid = starter.run(f"pgrep -o -f '{pool.enter}'")[1].split()[0]
    os.kill(int(pid), signal.SIGTERM)
    eventually(lambda: (starter.scratch / "status").exists() and (starter.scratch / "status").read_text().strip())
    assert (starter.scratch / "status").read_text().split() == ["9"]
    assert (starter.scratch / "out").read_text().split() == ["got"]


@pytest.mark.ovs
def test_a_users_word_that_its_program_has_ended_changes_nothing(pool: Pool) -> None:
    starter, said = started(pool)
    began = time.monotonic()
    for _ in range(3):
        _, answer = starter.as_user(
            f"curl -s -w '%{{http_code}}' --unix-socket {pool.socket} -d x http://localhost/v1/usage"
        )
        assert answer.strip() == "200"
    assert time.monotonic() - began < 10
    assert pool.client.job(value(said, "LarkJobId"))["state"] == "enforced"
