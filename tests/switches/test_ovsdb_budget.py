"""A switch's database that has no end of things to say: it is read as far as its budget of time goes."""

from __future__ import annotations

import selectors
import socket
import time

import pytest

from lark_controller.switches.fence import Fence
from lark_controller.switches.ovsdb import driver, json_stream
from lark_controller.switches.ovsdb.json_stream import Parser


def test_a_database_beyond_its_time_is_not_read_and_later_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, selectors.DefaultSelector() as selector:
        switch = driver._Switch(7, f"tcp:127.0.0.1:{listener.getsockname()[1]}", selector, 0, Fence())
        while not selector.get_map():  # it connects
            switch.step()
        switch.paid(driver.TIME_AT_ONCE / 2)
        assert len(selector.get_map()) == 1
        now = time.monotonic()
        switch.paid(driver.TIME_AT_ONCE)
        assert len(selector.get_map()) == 0
        assert switch.deadline - now > 0.4 * driver.TIME_AT_ONCE / driver.TIME_SHARE
        # When it is due, or has to be told something.
        switch.step()
        assert len(selector.get_map()) == 1
        switch.close()


@pytest.mark.parametrize("value", ["0", '"x"', "null"])
def test_a_value_of_too_many_values_is_not_made(value: str) -> None:
    parser = Parser()
    parser.feed("[0")
    for _ in range(1000):
        if parser.is_done():
            break
        parser.feed(f",{value}" * 10_000)
    assert parser.finish() == f"more than {json_stream._MOST_VALUES} values in one value"
