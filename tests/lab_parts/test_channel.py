from __future__ import annotations

import os
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.channel import CREDIT, HEADER, PAYLOAD_LIMIT, Channel, Decoder, Kind, encode

FRAMES = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.sampled_from(list(Kind)), st.binary(max_size=300)), max_size=8
)


@given(FRAMES, st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_frames_survive_any_cut(frames: list[tuple[int, Kind, bytes]], cuts: list[int]) -> None:
    data = b"".join(encode(*frame) for frame in frames)
    decoder = Decoder()
    seen: list[tuple[int, Kind, bytes]] = []
    position = turn = 0
    while position < len(data):
        size = cuts[turn % len(cuts)]
        seen += decoder.feed(data[position : position + size])
        position += size
        turn += 1
    assert seen == frames


def test_a_payload_that_is_too_long_is_refused_on_both_ends() -> None:
    with pytest.raises(ValueError, match="at most"):
        encode(1, Kind.INPUT, b"x" * (PAYLOAD_LIMIT + 1))
    with pytest.raises(ValueError, match="at most"):
        Decoder().feed(HEADER.pack(1, Kind.INPUT, PAYLOAD_LIMIT + 1))


def test_a_channel_ends_when_the_other_end_is_gone() -> None:
    reading, writing = os.pipe()
    Channel(writing).send(3, Kind.OUTPUT, b"last words")
    os.close(writing)
    seen: list[tuple[int, Kind, bytes]] = []
    Channel(reading).serve(lambda *frame: seen.append(frame))
    os.close(reading)
    assert seen == [(3, Kind.OUTPUT, b"last words")]


def test_no_more_than_the_window_is_under_way() -> None:
    outside, inside = socket.socketpair()
    with outside, inside:
        sender = Channel(outside.fileno(), window=100)
        threading.Thread(target=sender.serve, args=(lambda *frame: None,), daemon=True).start()
        sending = threading.Thread(target=sender.send, args=(1, Kind.INPUT, b"x" * 1000), daemon=True)
        sending.start()
        first = inside.recv(100, socket.MSG_WAITALL)
        inside.setblocking(False)
        with pytest.raises(BlockingIOError):
            inside.recv(1)
        inside.setblocking(True)
        inside.sendall(encode(0, Kind.CREDIT, CREDIT.pack(len(first))))
        seen = len(first)
        while seen < HEADER.size + 1000:
            seen += len(data := inside.recv(100))
            inside.sendall(encode(0, Kind.CREDIT, CREDIT.pack(len(data))))
        sending.join(60)
        assert not sending.is_alive()


def test_a_sender_that_waits_is_told_that_the_other_end_is_gone() -> None:
    outside, inside = socket.socketpair()
    failed = threading.Event()

    def send() -> None:
        with pytest.raises(OSError, match=r"gone|Broken|reset"):
            sender.send(1, Kind.INPUT, b"x" * 1000)
        failed.set()

    with outside:
        sender = Channel(outside.fileno(), window=100)
        threading.Thread(target=sender.serve, args=(lambda *frame: None,), daemon=True).start()
        threading.Thread(target=send, daemon=True).start()
        inside.recv(100, socket.MSG_WAITALL)
        inside.close()
        assert failed.wait(60)
