"""Sets attributes in a running job's ad, by HTCondor's protocol for jobs (Chirp).

A starter takes such attributes any time and hands them to the shadow with its next update, the last one included.
``CHIRP_DELAYED_UPDATE_PREFIX``, on the worker and on the access point, has the names that are accepted.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lark_worker.errors import StarterError

SECONDS: Final = 5.0
_LONGEST: Final = 1024
# Letters of a text: the protocol's lines have 1,024 bytes, where each letter may need four.
_LONGEST_TEXT: Final = 240
# With and without STARTER_NESTED_SCRATCH, as seen from where the starter works.
_NAMES: Final = ("../user/.chirp.config", ".chirp.config")
_LISTENS: Final = b"0A"
_ATTRIBUTE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def set_attributes(starter: int, attributes: Mapping[str, float | str]) -> None:
    """Set attributes of the job below a starter. Raises StarterError.

    The file with the starter's port belongs to the job's user. So only a port of that very starter, on the loopback
    interface, is used, whatever the file has.
    """
    port, cookie = _config(starter)
    family = _listens(starter, port)
    if family is None:
        raise StarterError(f"port {port} is not one that starter {starter} listens on")
    try:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(SECONDS)
            connection.connect(("::1" if family == socket.AF_INET6 else "127.0.0.1", port))
            with connection.makefile("rwb") as stream:
                lines = [f"cookie {cookie}"]
                lines += [
                    f"set_job_attr_delayed {name} {_word(value)}" for name, value in attributes.items() if _fits(name)
                ]
                for line in lines:
                    stream.write(line.encode("ascii") + b"\n")
                    stream.flush()
                    reply = stream.readline(_LONGEST)
                    if reply.strip() != b"0":
                        raise StarterError(f"{line.split()[0]}: starter {starter} answers {reply!r}")
    except OSError as error:
        raise StarterError(f"starter {starter} cannot be found: {error}") from None


def _word(value: float | str) -> str:
    """A value as a ClassAd literal, in one word of the protocol: blanks and backslashes have a backslash in front."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6f}"
    text = "".join(character if " " <= character <= "~" else "?" for character in value[:_LONGEST_TEXT])
    literal = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return literal.replace("\\", "\\\\").replace(" ", "\\ ")


def _fits(name: str) -> bool:
    return _ATTRIBUTE.fullmatch(name) is not None


def _config(starter: int) -> tuple[int, str]:
    """Port and cookie, from a file beside the directory in which the starter works, or in it."""
    for name in _NAMES:
        try:
            folder = os.open(f"/proc/{starter}/cwd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            finally:
                os.close(folder)
            with os.fdopen(fd, "rb") as file:
                words = file.read(_LONGEST).decode("ascii").split()
            if len(words) == 3 and words[1].isdigit():
                return int(words[1]), words[2]
        except (OSError, ValueError):
            continue
    raise StarterError(f"starter {starter} takes no attributes: there is no .chirp.config")


def _listens(starter: int, port: int) -> socket.AddressFamily | None:
    """The family of the socket by which a process listens on a port of the loopback interface."""
    folder = Path("/proc", str(starter), "fd")
    held = set()
    try:
        for entry in folder.iterdir():
            try:
                held.add(str(entry.readlink()))
            except OSError:
                continue
        for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
            # In the starter's network namespace: a pool's daemons may have one of their own.
            for line in Path(f"/proc/{starter}/net/{name}").read_bytes().splitlines()[1:]:
                words = line.split()
                mine = f"socket:[{int(words[9])}]" in held
                if mine and words[3] == _LISTENS and int(words[1].rpartition(b":")[2], 16) == port:
                    return family
    except OSError:
        return None
    return None
