"""The long way of the experiment on transfers: a program between two interfaces that holds frames up."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lab.namespaces import Host, Net
from lab.run import run
from tests.fixtures.service import wait

MS = 29
SIZE = 3_000_000
# Takes all that is sent, and answers with its length and its sum.
SERVER = """
import socket, zlib
with socket.create_server(("10.9.0.2", 5001)) as server:
    connection, _ = server.accept()
    taken = b""
    while part := connection.recv(1 << 16):
        taken += part
    connection.sendall(f"{len(taken)} {zlib.crc32(taken)}".encode())
    connection.close()
"""
CLIENT = """
import random, socket, sys, time, zlib
sent = random.Random(1).randbytes(int(sys.argv[1]))
while True:
    try:
        connection = socket.create_connection(("10.9.0.2", 5001))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
connection.sendall(sent)
connection.shutdown(socket.SHUT_WR)
print(connection.recv(100).decode() == f"{len(sent)} {zlib.crc32(sent)}")
"""


@pytest.fixture
def ends() -> Iterator[tuple[Net, Host, Host]]:
    with Net() as net:
        one, other = (net.host(f"h{number}", addresses=[f"10.9.0.{number}/24"]) for number in (1, 2))
        program = subprocess.Popen([sys.executable, "-m", "experiments.long_way", one.port, other.port, str(MS)])
        yield net, one, other
        program.kill()
        program.wait()


def test_an_interface_that_was_down_is_part_of_the_way_again(ends: tuple[Net, Host, Host]) -> None:
    net, one, _ = ends

    def passes() -> bool:
        return net.exec(one, ["ping", "-c", "1", "-W", "1", "10.9.0.2"], check=False).returncode == 0

    wait(passes, limit=20)
    for state in ("down", "up"):
        run(["ip", "link", "set", one.port, state])
    wait(passes, limit=20)


# As the lab's machines send, and as others do: TCP's segments joined, with checksums left to the interface.
@pytest.mark.parametrize("joined", [False, True])
def test_frames_take_their_time_and_come_whole(ends: tuple[Net, Host, Host], joined: bool) -> None:
    net, one, other = ends
    if joined:
        for host in (one, other):
            net.exec(host, ["ethtool", "-K", "eth0", "tx", "on"])
    net.start(other, [sys.executable, "-c", SERVER])
    assert net.exec(one, [sys.executable, "-c", CLIENT, str(SIZE)]).stdout == "True\n"
    shown = net.exec(one, ["ping", "-c", "3", "-i", "0.2", "10.9.0.2"]).stdout
    assert all(float(each) >= 2 * MS for each in re.findall(r"time=([\d.]+)", shown)), shown
    assert "3 received" in shown
