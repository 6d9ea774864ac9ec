"""The SuperFacility paper's tables in short, on a real switch, by real programs."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from experiments import superfacility
from experiments.beside import Processors
from experiments.core_path import POOL, CorePath
from experiments.core_traffic import OPENED, OWN, Jobs, Way
from experiments.page import text
from experiments.result import read, write
from experiments.superfacility import ECHOED, TOOLS, Row
from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lab.run import LabError
from tests.fixtures.service import wait


@pytest.mark.ovs
def test_every_transfer_passes_by_both_ways_in_both_directions() -> None:
    rows = superfacility.measure(1, 0.02, (2,), 20, (9000,))
    places = {(row.mtu, row.called, row.mapped) for row in rows}
    assert places == {(9000, 2, 2), (9000, 1, 20)}
    for place in places:
        theirs = [row for row in rows if (row.mtu, row.called, row.mapped) == place]
        assert {(row.tool, row.inwards) for row in theirs if row.tool != ECHOED} == {
            (tool, inwards) for tool in TOOLS for inwards in (True, False)
        }
        assert all(each > 0 for row in theirs for each in (*row.direct, *row.external))
    assert len({row.flows for row in rows}) == 2
    assert [row.mapped for row in rows if row.tool == ECHOED] == [20]


def test_a_round_from_which_processors_were_taken_is_measured_again() -> None:
    ways = (Way("direct", ("10.64.0.1",), OWN), Way("external", (str(POOL + 1),), 0))

    def measured(*shares: float) -> superfacility.Rounds:
        stats = iter([Processors(0, taken, 1000 * count) for count, taken in enumerate(summed(shares))])
        # A reading before a round, and one after it.
        looks = iter([each for pair in pairwise(list(stats)) for each in pair])
        values = iter(range(100))
        return superfacility.by_turns(lambda _: float(next(values)), ways, 2, lambda: next(looks))

    def summed(shares: tuple[float, ...]) -> list[int]:
        return list(accumulate((round(1000 * share) for share in shares), initial=0))

    # By turns: the way that is first in one round is second in the next.
    assert measured(0.0, 0.3, 0.01) == ((1.0, 5.0), (0.0, 4.0), (0.0, 0.01), 1)
    assert measured(*[0.3] * 6) == ((1.0, 2.0, 5.0, 6.0, 9.0, 10.0), (0.0, 3.0, 4.0, 7.0, 8.0, 11.0), (0.3,) * 6, 0)


@pytest.mark.ovs
def test_what_is_called_by_an_external_address_is_translated_and_what_nobody_serves_fails(
    ovs: OpenVSwitch, net: Net, tmp_path: Path
) -> None:
    path = CorePath(ovs, net, tmp_path, 1500)
    jobs = Jobs(path, tmp_path / "transfers")
    path.map(1, OPENED)

    def translated() -> int:
        flows = ovs.ofctl(path.bridge, "dump-flows", "--no-names").splitlines()
        counts = [each for each in flows if "->ipv4_dst" in each or "set_field:10.64.0.1->ip_dst" in each]
        return sum(int(each.partition("n_packets=")[2].partition(",")[0]) for each in counts)

    with jobs.serving(["10.64.0.1"]):
        assert jobs.copy(Way("direct", ("10.64.0.1",), OWN), True, 0.01) > 0
        assert translated() == 0
        assert jobs.copy(Way("external", (str(POOL + 1),), 0), True, 0.01) > 0
        # A switch's counters follow a moment later.
        wait(lambda: translated() > 5)
        with pytest.raises(LabError, match="a transfer failed"):
            jobs.copy(Way("nobody's", ("10.64.0.1",), OWN // 2), True, 0.01)


def test_the_page_shows_rates_ratios_and_which_aims_are_missed(tmp_path: Path) -> None:
    def row(tool: str, called: int, mapped: int, *ratios: float) -> Row:
        return Row(tool, 1500, True, called, mapped, 30, (1000.0,) * len(ratios), tuple(1000.0 * r for r in ratios))

    rows = [row(tool, *place, 1.0, 0.96, 1.02) for tool in TOOLS for place in ((1, 1), (8, 8))]
    rows += [row(tool, 1, 4000, 0.5, 0.9, 0.96) for tool in TOOLS]
    rows += [row(ECHOED, 1, 1, 1.04, 1.02, 1.2)]
    made = superfacility.results(rows, 0.5)
    assert [read(write(each, tmp_path)) for each in made] == list(made)
    checks = {each.aim.partition(":")[0]: each.met for each in made[-1].checks}
    assert checks == {
        "1 called, 1 mapped": True,
        "8 called, 8 mapped": True,
        "1 called, 4,000 mapped": False,
        "a round trip takes at most 0.05 ms more": True,
    }
    page = text(made, "pictures")
    assert "1500 to jobs 1 (4,000)" in page
    assert "| **no** |" in page
