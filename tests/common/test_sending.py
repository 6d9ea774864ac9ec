"""Sending without letting the interpreter's lock go."""

from __future__ import annotations

import socket

from lark_common.sending import MOST, send_at_once


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
