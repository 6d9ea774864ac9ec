"""Exchanges that reserve whole links: what is asked for on each kind of cable, and what is said of losses."""

from __future__ import annotations

import pytest

from experiments import full_links, paper
from experiments.beside import Kept, Meanwhile, Taken, keep
from experiments.cable import held, rewired, wire
from experiments.cluster import Played, of_json
from experiments.losses import Losses, counts, dropped_by
from experiments.measured import Measured
from experiments.nodes import Request, Run, schedulers
from experiments.options import Options
from experiments.result import Result
from lab.run import LabError

FINE = Meanwhile(1.0, 0.0, 0.5, 0.4)
OPTIONS = Options()


def kept(seconds: tuple[float, ...], dropped: int = 0) -> Kept[Played]:
    return keep([Taken(Played(seconds, losses=Losses(dropped, 2 * dropped, dropped // 10)), FINE)])


def times(slower: float, dropped: int) -> dict[str, Kept[Played]]:
    """All runs; at once, cables that hold back 40 ms drop so many frames and the exchanges take so much longer."""
    found = {}
    for each in full_links.runs(OPTIONS, 1.0):
        few = each.name.startswith(full_links.SHALLOW.name + ",") and len(each.rates) > 1
        seconds = tuple(100 / (rate or 1.0) * (slower if few else 1.0) for rate in each.rates)
        found[each.name] = kept(seconds, dropped if few else 0)
    return found


def verdicts(found: Result) -> list[bool]:
    return [each.met for each in found.checks]


def test_the_exchanges_reserve_all_of_a_link_on_every_kind_of_cable() -> None:
    made = list(full_links.runs(OPTIONS, 1.0))
    assert len({each.name for each in made}) == len(made) == 4 * len(full_links.VARIANTS)
    for each in made:
        if len(each.rates) > 1:
            # In both directions together; half of it where all is half as fast.
            assert 14 * sum(rate or 0.0 for rate in each.rates) == pytest.approx(paper.LINK_MBYTES * min(1, each.wider))
    assert [each.frames for each in made[:8]] == [0] * 4 + [full_links.DEEP.frames] * 4
    assert len(list(full_links.runs(Options(quick=True), 1.0))) == 8


def test_losses_explain_the_time_or_they_do_not() -> None:
    found = full_links.result(Measured(times(1.12, 40)), OPTIONS)
    assert verdicts(found) == [True, True, True]
    assert "40 ms: 40 frames dropped, 80 segments sent again, 4 time-outs at once, 0 frames dropped" in found.notes[1]
    assert "40 ms, 1.120 to 1.120; 8 frames a flow, 1.000 to 1.000" in found.notes[2]
    # At a hundredth of the paper's rates.
    assert "it holds 57 for all of them" in found.notes[0]
    assert len(found.places) == 3 * len(full_links.VARIANTS)
    # Nothing is lost, so something else costs the time.
    assert verdicts(full_links.result(Measured(times(1.12, 0)), OPTIONS)) == [False, True, True]


def test_a_kind_of_cable_that_failed_is_left_out_and_named() -> None:
    every = times(1.12, 40)
    failed = f"{full_links.DEEP.name}, at once"
    found = full_links.result(
        Measured({name: each for name, each in every.items() if name != failed}, {failed: "it broke"}), OPTIONS
    )
    assert verdicts(found) == [True]
    assert len(found.places) == 3 * (len(full_links.VARIANTS) - 1)
    assert "at once (it broke)" in found.notes[-1]
    with pytest.raises(LabError):
        full_links.result(Measured({}), OPTIONS)


SHOWN = """\
qdisc prio 1: root refcnt 2 bands 2 priomap 1 1 1 1
 Sent 1 bytes 1 pkt (dropped 9, overlimits 0 requeues 0)
qdisc netem 8002: parent 1:2 limit 57 rate 17136Kbit
 Sent 34 bytes 12 pkt (dropped 7, overlimits 0 requeues 0)
 backlog 0b 0p requeues 0
"""
COUNTS = """\
Tcp: RtoAlgorithm RetransSegs
Tcp: 1 12
TcpExt: SyncookiesSent TCPTimeouts
TcpExt: 0 3
"""


def test_losses_are_read_from_cables_and_connections() -> None:
    assert dropped_by(SHOWN) == 7
    assert dropped_by("qdisc noqueue 0: root") == 0
    found = counts(COUNTS)
    assert (found["Tcp.RetransSegs"], found["TcpExt.TCPTimeouts"]) == (12, 3)
    assert Losses(9, 8, 7).since(Losses(1, 2, 3)) == Losses(8, 6, 4)
    played = {"seconds": [1.0], "losses": {"dropped": 7, "again": 12, "timeouts": 3}}
    assert of_json({"played": played, "reference": 1.0, "inside": 0.1}).value.losses == Losses(7, 12, 3)


def test_cables_hold_back_40_ms_or_so_many_frames() -> None:
    assert held(17.136) == 57
    assert held(1.0) == 50
    assert "limit 57" in wire("up0", 17.136)[1]
    assert rewired("half0", 17.136, 336) == "tc qdisc change dev half0 parent 1:2 netem rate 17.136mbit limit 336"
    request = Request(2, 16.8, True, 1, 1, 1, (Run("one", (1.0,)),), 60)
    assert schedulers(request) == ["half0", "half1"]
    full = Request(2, 16.8, False, 1, 1, 1, (Run("one", (1.0,)),), 60)
    assert schedulers(full) == ["half0", "inhalf0", "half1", "inhalf1"]
