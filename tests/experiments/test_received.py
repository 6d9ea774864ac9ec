"""Counts of what a machine's sockets receive: made by the program that runs in the lab, and turned into rates."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from experiments.received import Counts, counts


def printed(*samples: tuple[float, list[tuple[int, int, int]]]) -> str:
    """The program's output: at each time (port, the socket's number, bytes), and one more line that is cut off."""
    return "".join(f"{json.dumps([at, sockets])}\n" for at, sockets in samples) + "[14.0, [[5301,"


def test_the_program_counts_the_payload_that_a_socket_has_received() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        taken, _ = server.accept()
        with taken:
            sender.sendall(b"x" * 3000)
            assert len(taken.recv(3000, socket.MSG_WAITALL)) == 3000
            command = [sys.executable, "-m", "experiments.socket_counts", "0.01"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
                assert program.stdout is not None
                lines = [program.stdout.readline() for _ in range(2)]
                program.kill()
            found = counts("".join(lines))
            assert [ports[server.getsockname()[1]] for _, ports in found.samples] == [3000, 3000]


def test_a_ports_rate_is_that_between_the_counts_next_to_the_times() -> None:
    found = counts(
        printed(
            (10.0, [(5301, 1, 0)]),
            (11.0, [(5301, 1, 125_000)]),
            (12.0, [(5301, 1, 375_000), (5302, 2, 50_000)]),
            (13.0, [(5301, 1, 375_000)]),
        )
    )
    assert [at for at, _ in found.samples] == [10.0, 11.0, 12.0, 13.0]
    assert found.rate(5301, 11.1, 11.9) == pytest.approx(2.0)
    assert found.rate(5301, 10.0, 12.0) == pytest.approx(1.5)
    assert found.rate(5301, 12.0, 13.0) == 0
    assert found.rate(5302, 10.0, 12.0) == pytest.approx(0.2)
    assert found.rate(5399, 10.0, 13.0) == 0


def test_a_socket_that_is_closed_keeps_what_it_had_and_another_one_of_its_port_adds_to_it() -> None:
    found = counts(printed((1.0, [(5301, 1, 1_000_000)]), (2.0, []), (3.0, [(5301, 2, 250_000), (5301, 3, 0)])))
    assert [ports.get(5301, 0) for _, ports in found.samples] == [1_000_000, 1_000_000, 1_250_000]
    assert found.rate(5301, 2.0, 3.0) == pytest.approx(2.0)


@pytest.mark.parametrize("text", ["", "[1.0, []]\n", "no such program\n", "[1.0, []]\n[2.0, [", "[1.0, []]\n[2.0, []]"])
def test_without_two_counts_there_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="nothing was counted"):
        counts(text).rate(5301, 0, 9)


def test_an_empty_time_has_no_rate() -> None:
    assert Counts(((1.0, {}), (2.0, {1: 5}))).rate(1, 3.0, 3.0) >= 0
