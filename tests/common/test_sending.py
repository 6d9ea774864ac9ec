"""Sending and receiving without letting the interpreter's lock go."""

from __future__ import annotations

import socket
import sys
import threading

import pytest

from lark_common.sending import MOST, AtOnce, send_at_once


def test_a_part_is_sent_where_the_socket_takes_no_more() -> None:
    here, there = socket.socketpair()
    data = bytes(range(256)) * 40_000
    sent = 0
    while taken := send_at_once(here.fileno(), data[sent:]):
        assert taken <= MOST
        sent += taken
    assert 0 < sent < len(data)
    got = b""
    there.setblocking(False)
    while len(got) < sent:
        got += there.recv(1 << 20)
    assert got == data[:sent]


def test_a_socket_that_has_failed_takes_nothing_and_ends_nobody() -> None:
    here, there = socket.socketpair()
    there.close()
    assert send_at_once(here.fileno(), b"anything") == 0
    descriptor = here.fileno()
    here.close()
    assert send_at_once(descriptor, b"anything") == 0


def test_a_socket_for_a_library_sends_and_receives_and_never_waits() -> None:
    here, there = socket.socketpair()
    ours = AtOnce(here)
    assert ours.fileno() == here.fileno()
    with pytest.raises(BlockingIOError):
        ours.recv(10)
    there.sendall(b"\0one\0two")
    assert ours.recv(5) == b"\0one\0"
    assert ours.recv(4096) == b"two"
    assert ours.send(b"\0three") == 6
    assert there.recv(10) == b"\0three"
    while send_at_once(here.fileno(), bytes(MOST)):
        pass
    with pytest.raises(BlockingIOError):
        ours.send(b"x")
    there.close()
    with pytest.raises(OSError, match=r"Connection reset|Broken pipe"):
        ours.send(b"x")
    ours.close()
    assert here.fileno() == -1


def test_a_library_that_receives_lets_no_other_thread_run_before() -> None:
    """Beside a thread that calculates a call that lets the lock go returns when that thread's time is over."""
    here, there = socket.socketpair()
    ours, ends, turns = AtOnce(here), threading.Event(), [0]

    def calculate() -> None:
        while not ends.is_set():
            turns[0] += 1

    thread = threading.Thread(target=calculate)
    before, unbroken = sys.getswitchinterval(), 0
    sys.setswitchinterval(0.05)
    thread.start()
    try:
        for _ in range(300):
            send_at_once(there.fileno(), b"x")
            seen = turns[0]
            ours.recv(10)
            unbroken += turns[0] == seen
    finally:
        ends.set()
        thread.join()
        sys.setswitchinterval(before)
    # The lock goes to the other thread where this one's own time happens to be over.
    assert unbroken > 250
