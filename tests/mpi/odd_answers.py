"""Answers that are none, for the Python and the C client."""

from __future__ import annotations

from typing import Final

HEAD: Final = b"HTTP/1.1 200 OK\r\n\r\n"
ODD: Final = (
    b"",
    b"\r\n\r\n",
    b"HTTP/1.1",
    b"HTTP/1.1 2000 OK\r\n\r\n{}",
    b"HTTP/1.1 xyz OK\r\n\r\n{}",
    b"SSH-2.0-OpenSSH_9\r\n\r\n{}",
    HEAD,
    HEAD + b"[]",
    HEAD + b'{"id": ',
    HEAD + b'{"id": "\\u12"}',
    HEAD + b'{"id": "\xff\xfe"}',
    HEAD + b"[" * 100_000,
    HEAD + b'{"a":' * 100_000,
    HEAD + b"\0" * 1000,
)
