"""Vouchers of switches that are handed on: read by instances of the same term alone, and unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_common.errors import SwitchError
from lark_controller.switches.openflow import relays, wire
from lark_controller.switches.openflow.connection import NEW_BYTES
from lark_controller.switches.openflow.relays import Seal, Vouched, read_voucher, voucher

SEAL = Seal("5e" * 32, 7, "b")
VOUCHED = Vouched(1, "192.0.2.7:40000", "192.0.2.7", "worker7", "b")
TEXT = st.text(max_size=80)


@given(words=st.builds(Vouched, st.integers(0, 2**64 - 1), TEXT, TEXT, TEXT, TEXT))
def test_a_voucher_is_read_as_it_was_written_by_an_instance_of_this_term_alone(words: Vouched) -> None:
    message = voucher(SEAL, words)
    assert wire.HEADER.unpack_from(message)[2] == len(message)
    assert read_voucher(message, SEAL) == words
    for other in (Seal("", 7, "a"), Seal("5f" * 32, 7, "a"), Seal(SEAL.key, 8, "a")):
        assert read_voucher(message, other) is None


@given(place=st.integers(8, len(voucher(SEAL, VOUCHED)) - 1), other=st.integers(1, 255))
def test_a_voucher_that_was_changed_anywhere_is_none(place: int, other: int) -> None:
    message = bytearray(voucher(SEAL, VOUCHED))
    message[place] ^= other
    assert read_voucher(bytes(message), SEAL) is None
    assert read_voucher(bytes(message[:place]), SEAL) is None


@pytest.mark.parametrize(
    "words", [b"", b"[]", b"7", b"{}", b'{"generation":7}', b'{"generation":7,"a":1}', b"\xff", b"nothing",
              b'{"generation":7,"datapath":1,"address":"a","host":7,"tls_name":"","through":"b"}',
              b'{"generation":7,"datapath":"1","address":"a","host":"a","tls_name":"","through":"b"}',
              b'{"generation":7,"address":"a","host":"a","tls_name":"","through":"b"}']
)  # fmt: skip
def test_a_voucher_of_another_release_is_none(words: bytes) -> None:
    first = voucher(SEAL, VOUCHED)[:16]
    assert read_voucher(first + relays._code(SEAL.key, words) + words, SEAL) is None


def test_a_voucher_that_would_not_be_read_is_not_made() -> None:
    longest = NEW_BYTES - len(voucher(SEAL, VOUCHED._replace(tls_name="")))
    assert len(voucher(SEAL, VOUCHED._replace(tls_name=longest * "n"))) == NEW_BYTES
    for length in (longest + 1, 70_000):
        with pytest.raises(SwitchError, match="too long"):
            voucher(SEAL, VOUCHED._replace(tls_name=length * "n"))
