"""Messages of an OVSDB server: the same values in whatever pieces they come, and a replica that can be compared."""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import Any, Final

import ovs.jsonrpc

from lark_controller.qos.queues import PortQueues, Queue
from lark_controller.switches.ovsdb import rows, term
from lark_controller.switches.ovsdb.json_stream import Parser
from lark_controller.switches.ovsdb.replica import Replica
from lark_controller.switches.ovsdb.transactions import outcome

MAX_BYTES: Final = 8192
DATAPATH: Final = "0000000000000001"
UUID: Final = "11111111-2222-3333-4444-555555555555"
DICTIONARY: Final = tuple(
    word.encode()
    for word in (
        '{"id":7,"error":null,"result":', '{"id":null,"method":"update2","params":["fuzz",', '"Port"', '"QoS"',
        '"Queue"', '"Bridge"', '"Open_vSwitch"', '{"initial":', '"insert":', '"modify":', '"delete":',
        '["uuid","' + UUID + '"]', '["set",[', '["map",[', '"other_config"', '"external_ids"', '"queues"', '"qos"',
        '"name"', '"next_cfg"', '"lark-datapath"', '"lark-port"', '"lark-queue"', '"lark-generation"', '"min-rate"',
        '"max-rate"', DATAPATH, UUID,
        "]]", "}}", "1e999", "-1", "null", "\\u0000", '\\"',
    )
)  # fmt: skip
logging.disable(logging.CRITICAL)


class _Session:
    """A connection from which these messages come."""

    rpc = None

    def __init__(self, messages: list[Any]) -> None:
        self._messages = deque(messages)

    def __getattr__(self, name: str) -> Any:
        return {"is_connected": lambda: True, "get_seqno": lambda: 1, "send": lambda _: 0}.get(name, lambda *_: None)

    def recv(self) -> Any:
        return self._messages.popleft() if self._messages else None


def run(data: bytes) -> None:
    """Read ``data`` in pieces and at once, then as what a server says to a replica."""
    text = data.decode("utf-8", "replace")
    whole, size = _read(text, len(text) or 1), 1 + len(data) % 61
    # What is no JSON may be noticed earlier or later; all before it is the same.
    pieces = _read(text, size)
    for one, other in zip(_good(pieces), _good(whole), strict=False):
        assert json.dumps(one) == json.dumps(other)
    try:
        expected = json.loads(text)
    except (ValueError, RecursionError):
        pass
    else:
        if isinstance(expected, dict | list):
            assert json.dumps(whole[0]) == json.dumps(expected)
    messages = []
    for value in whole:
        message = ovs.jsonrpc.Message.from_json(value) if isinstance(value, dict) else "no object"
        if not isinstance(message, str):
            messages.append(message)
    if messages:
        _follow(messages)


def _good(values: list[Any]) -> list[Any]:
    return [value for value in values if not isinstance(value, str)]


def _read(text: str, size: int) -> list[Any]:
    values = []
    parser = Parser()
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        while piece:
            taken = parser.feed(piece)
            assert 0 <= taken <= len(piece)
            if not parser.is_done():
                assert taken == len(piece)
                break
            values.append(parser.finish())
            if isinstance(values[-1], str):
                return values  # the connection ends
            piece = piece[taken:]
            parser = Parser()
    return values


def _follow(messages: list[Any]) -> None:
    for message in messages:
        outcome(message.result, message.error)
    replica = Replica("unix:/nowhere", 5000)
    replica._session, replica._connection, replica._asked, replica._monitor = _Session(messages), 1, 7, "fuzz"
    try:
        replica.exchange()
    except ValueError:
        return  # the driver begins anew with this switch, and says so
    found, bridge = replica.rows(), replica.bridge(DATAPATH)
    desired = {"eth0": PortQueues(1_000_000_000, {1: Queue(1_000_000, 2_000_000)})}
    rows.difference(DATAPATH, desired, found)
    rows.standing(DATAPATH, desired, found)
    rows.waited(DATAPATH, found)
    rows.dropped(DATAPATH, found)
    if bridge is not None:
        term.generation_in(bridge.ids)
        json.dumps(term.guard(bridge.uuid, bridge.ids, 7))
