"""The lab's service for its outside: programs by number over one byte stream."""

from __future__ import annotations

import json
import socket
import threading

from lab.boot import Stream
from lab.channel import Channel, Kind
from lab.inside.agent import Agent


def test_programs_run_and_what_comes_for_one_that_has_ended_is_dropped() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        agent = Agent(Channel(theirs.fileno()))
        streams = {number: Stream() for number in (1, 2)}
        outside = Channel(ours.fileno())

        def take(number: int, kind: Kind, payload: bytes) -> None:
            streams[number].receive(kind, payload)

        reader = threading.Thread(target=outside.serve, args=(take,))
        reader.start()
        agent.handle(1, Kind.EXEC, json.dumps({"argv": ["true"]}).encode())
        assert streams[1].ended.wait(20)
        for kind, payload in (
            (Kind.INPUT, b"late"), (Kind.RESIZE, b'{"rows": 24, "columns": 80}'), (Kind.KILL, b""),
        ):  # fmt: skip
            agent.handle(1, kind, payload)
        agent.handle(2, Kind.EXEC, json.dumps({"argv": ["cat"]}).encode())
        agent.handle(2, Kind.INPUT, b"unchanged")
        agent.handle(2, Kind.INPUT, b"")
        assert streams[2].ended.wait(20)
        assert [each.result for each in streams.values()] == [{"status": 0}] * 2
        assert bytes(streams[2].output) == b"unchanged"
        theirs.shutdown(socket.SHUT_RDWR)
        reader.join()
