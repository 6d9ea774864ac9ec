"""Counts of what a machine's sockets receive: read from ``ss``, and turned into rates between two times."""

from __future__ import annotations

import pytest

from experiments.received import Counts, counts

LINE = "ESTAB 0 0 192.0.2.1:{port} 10.64.0.9:{peer} cubic rto:204 bytes_received:{bytes} segs_in:9 rcv_space:14480"


def printed(*samples: tuple[float, list[tuple[int, int, int]]]) -> str:
    """The script's output: at each time (port, the peer's port, bytes)."""
    lines = []
    for at, sockets in samples:
        lines.append(f"at {at}")
        lines += [LINE.format(port=port, peer=peer, bytes=received) for port, peer, received in sockets]
    return "\n".join(lines) + "\n"


def test_a_ports_rate_is_that_between_the_counts_next_to_the_times() -> None:
    found = counts(
        printed(
            (10.0, [(5301, 1, 0)]),
            (11.0, [(5301, 1, 125_000)]),
            (12.0, [(5301, 1, 375_000), (5302, 2, 50_000)]),
            (13.0, [(5301, 1, 375_000)]),
            (14.0, []),
        )
    )
    # The last may be cut off.
    assert [at for at, _ in found.samples] == [10.0, 11.0, 12.0, 13.0]
    assert found.rate(5301, 11.1, 11.9) == pytest.approx(2.0)
    assert found.rate(5301, 10.0, 12.0) == pytest.approx(1.5)
    assert found.rate(5301, 12.0, 13.0) == 0
    assert found.rate(5302, 10.0, 12.0) == pytest.approx(0.2)
    assert found.rate(5399, 10.0, 13.0) == 0


def test_a_socket_that_is_closed_keeps_what_it_had_and_another_one_of_its_port_adds_to_it() -> None:
    found = counts(
        printed((1.0, [(5301, 1, 1_000_000)]), (2.0, []), (3.0, [(5301, 2, 250_000), (5301, 3, 0)]), (4.0, []))
    )
    assert [ports.get(5301, 0) for _, ports in found.samples] == [1_000_000, 1_000_000, 1_250_000]
    assert found.rate(5301, 2.0, 3.0) == pytest.approx(2.0)


@pytest.mark.parametrize("text", ["", "at 1.0\n", "ss: no such program\n", "at 1.0\nat 2.0\n"])
def test_without_two_counts_there_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="nothing was counted"):
        counts(text).rate(5301, 0, 9)


def test_an_empty_time_has_no_rate() -> None:
    assert Counts(((1.0, {}), (2.0, {1: 5}))).rate(1, 3.0, 3.0) >= 0
