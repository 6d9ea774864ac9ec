"""The experiment on transfers: what a batch's log and processes tell, and how its results are judged."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from experiments import lark_transfers, pool, sink, transfer_shares
from experiments.beside import Meanwhile
from experiments.options import Options
from experiments.plot import plot
from experiments.sandboxes import PARTS, Batch, Process, Ran, at_once, queue, ticks, times
from experiments.transfer_shares import Shares
from lab.boot import Lab
from lab.run import LabError
from lark_controller.policies.file import load
from tests.experiments.test_figures import FINE, LATE, kept, verdicts

BATCH = Batch(2, 10_000_000, 16)
LOG = """\
000 (007.000.000) 2026-11-25 10:00:00.250 Job submitted from host: <10.0.0.5:9618>
...
000 (007.001.000) 2026-11-25 10:00:00.250 Job submitted from host: <10.0.0.5:9618>
...
040 (007.000.000) 2026-11-25 10:00:01 Started transferring input files
\tTransferring to host: <10.0.0.11:9618>
...
040 (007.001.000) 2026-11-25 10:00:02.500 Started transferring input files
...
040 (007.000.000) 2026-11-25 10:00:03 Finished transferring input files
...
001 (007.000.000) 2026-11-25 10:00:03 Job executing on host: <10.0.0.11:9618>
...
040 (007.001.000) 2026-11-25 10:00:06.500 Finished transferring input files
...
040 (007.001.000) 2026-11-25 10:00:07 Started transferring output files
...
005 (007.000.000) 2026-11-25 10:00:04 Job terminated.
\t(1) Normal termination (return value 0)
...
005 (007.001.000) 2026-11-25 10:00:08.750 Job terminated.
\t(1) Normal termination (return value 0)
...
"""


def test_a_batch_lasts_from_its_submission_to_its_last_end() -> None:
    seconds, moving, most, again = times(LOG, 2)
    assert (seconds, moving) == pytest.approx((8.5, 3.0))
    assert (most, again) == (2, 0)


def test_a_job_that_was_started_again_is_counted() -> None:
    moved = "040 (007.001.000) 2026-11-25 10:00:0{} {} transferring input files\n...\n"
    assert times(LOG + moved.format(7, "Started") + moved.format(8, "Finished"), 2)[3] == 1


@pytest.mark.parametrize(
    "log",
    [
        LOG.replace("(return value 0)", "(return value 1)", 1),
        LOG.replace("040 (007.001.000) 2026-11-25 10:00:06.500 Finished transferring input", "…"),
        "",
    ],
)
def test_a_batch_in_which_a_job_failed_is_no_measurement(log: str) -> None:
    with pytest.raises(LabError, match="of 2 jobs"):
        times(log, 2)


def test_spans_that_follow_each_other_do_not_overlap() -> None:
    assert at_once([(0, 2), (2, 4), (1, 3)]) == 2
    assert at_once([]) == 0


class Written:
    """Stands in for a lab, and keeps the configuration that is written."""

    text = ""

    def write(self, _machine: str, _path: str, text: str) -> None:
        self.text = text

    def on(self, *_command: str) -> None:
        """Do nothing."""


def test_htcondors_queue_has_its_number_and_nothing_that_makes_it_smaller() -> None:
    """By default it begins with one transfer at a time, and gives a user with a fifth of the places no more slots."""
    lab = Written()
    with queue(lab, 8):  # type: ignore[arg-type]
        lines = lab.text.splitlines()
    assert {"MAX_CONCURRENT_UPLOADS = 8", "MAX_CONCURRENT_DOWNLOADS = 8"} < set(lines)
    assert {"FILE_TRANSFER_DISK_LOAD_THROTTLE =", "MAX_CONCURRENT_UPLOADS_PER_USER = 0"} < set(lines)


def test_processor_time_is_that_of_a_program_and_all_below_it() -> None:
    tree = [
        Process(1, 0, 1, "sh machine.sh"), Process(2, 1, 10, "/usr/sbin/condor_master -f"),
        Process(3, 2, 100, "condor_startd"), Process(4, 3, 1000, "condor_starter"), Process(5, 1, 5, "lark-worker run"),
        # Its parent has ended meanwhile.
        Process(6, 99, 7, "sleep"),
    ]  # fmt: skip
    assert ticks(tree, "condor_master") == 1110
    assert ticks(tree, "lark-worker run") == 5


def test_slots_are_shared_out_over_the_workers() -> None:
    assert (Batch(1, 1, 16).processors, Batch(1, 1, 80).processors) == (5, 1)


def ran(seconds: float, service: float = 0.0) -> Ran:
    return Ran(seconds, 3.0, 8, 0, dict.fromkeys(PARTS, 1.0) | {"worker service": service})


@pytest.mark.parametrize(
    ("with_lark", "meanwhile", "said"),
    [(102.0, FINE, "met"), (103.0, FINE, "missed"), (102.0, LATE, "not judged"), (90.0, FINE, "met")],
)
def test_jobs_an_hour_with_lark_are_held_to_those_without(
    with_lark: float, meanwhile: Meanwhile, said: str, tmp_path: Path
) -> None:
    runs = {
        "without Lark": kept(ran(100.0), ran(101.0), ran(99.0)),
        "with Lark": kept(ran(with_lark, service=0.5), meanwhile=meanwhile),
    }
    result = lark_transfers.rates({"": runs, "queue": runs}, BATCH, Options(), "native")
    # Of the starts those count that are sound, of whatever kind.
    assert verdicts(result) == [said, said, "met"]
    assert result.series[0].points[0].y == pytest.approx(72.0)
    # The paper's 10,000 jobs in 32 minutes have 5/6 of what its link carries; so of two sandboxes in 3.2 s here.
    assert result.series[1].paper
    assert result.series[1].points[0].y == pytest.approx(3600 / 1.6 * 5 / 6, rel=0.01)
    assert verdicts(lark_transfers.far_rates({"": runs}, BATCH, Options(), "native")) == [said, "met"]
    costs = lark_transfers.processor_time({"": runs}, BATCH, Options(), "native")
    place = 1 + list(PARTS).index("worker service")
    found = [[point.y for point in series.points if point.x == place] for series in costs.series]
    # Where it is stopped it has none, which no plot of such different times can show.
    assert found == [[], [pytest.approx(250.0)]]
    assert [path.exists() for path in plot(costs, tmp_path)] == [True, True]


@pytest.mark.parametrize(
    ("rates", "full", "said"),
    [
        ((12.4, 5.1), (0.9, 21.0), ["met", "met", "met"]),
        ((12.4, 4.6), (3.5, 21.0), ["missed", "missed", "met"]),
        ((13.3, 5.0), (0.9, 24.0), ["missed", "met", "missed"]),
    ],
)
def test_groups_have_their_shares_and_pings_pass(
    rates: Sequence[float], full: Sequence[float], said: Sequence[str]
) -> None:
    found = Shares(
        dict(zip(("cms", "other"), rates, strict=True)), {"site": 0.2, "WAN": 20.4},
        dict(zip(("site", "WAN"), full, strict=True)),
    )  # fmt: skip
    assert verdicts(transfer_shares.shares(kept(found), Options(), "native")) == list(said)
    # A ping is the time of programs: it counts only where the processors had time left.
    crowded = transfer_shares.shares(kept(found, meanwhile=Meanwhile(1.0, 0.0, 0.99, 0.9)), Options(), "uml")
    assert verdicts(crowded) == [said[0], "not judged", "not judged"]


def test_the_policy_and_the_cable_have_the_same_marks() -> None:
    rates = {"cms": 12.5, "other": 5.0}
    for made in (True, False):
        found = load(pool.policy(transfer_shares.RULE, transfer_shares.groups(rates, 1.0, made=made), wan=50))
        assert {group.dscp for group in found.groups} == set(transfer_shares.MARKS.values())
        assert {group.name: group.ceiling for group in found.groups}["group_cms"] == (None if made else 12.5)
    lines = transfer_shares.queues("c", rates, 50)
    assert "tc class add dev c parent 1:1 classid 1:18 htb rate 12.5mbit ceil 12.5mbit" in lines
    assert "tc class add dev c parent 1:1 classid 1:12 htb rate 32.5mbit ceil 50mbit" in lines
    assert "tc filter add dev c parent 1: protocol ip u32 match ip dsfield 40 0xfc flowid 1:10" in lines


def test_the_server_takes_what_is_uploaded() -> None:
    server = sink.Server(("::1", 0), sink.Taker)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://[::1]:{server.server_address[1]}/a"
        with urllib.request.urlopen(urllib.request.Request(url, bytes(300_000), method="PUT"), timeout=20) as answer:
            assert answer.status == 201
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_way_that_is_built_in_part_is_taken_away() -> None:
    class Broken:
        """A lab that fails in the middle of the way's commands."""

        def __init__(self) -> None:
            self.ran: list[str] = []

        def run(self, command: Sequence[str]) -> None:
            self.ran.append(command[-1])
            if len(self.ran) == 1:
                raise LabError("no such device")

    lab = Broken()
    with pytest.raises(LabError, match="no such device"), lark_transfers.far_away(cast(Lab, lab), 29.0):
        pytest.fail("there is no way")
    _, undone = lab.ran
    near, _ = lark_transfers.WAY
    assert f"ip link del {near}" in undone
    assert re.search(r"ip link set \S+ master \S+", undone)
