"""Files that hold one token each, for the machine that uses it: from the first byte on for their owner alone."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import stat
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final

from lark_common.errors import SettingError
from lark_controller.rest.tokens import Scope, add_all, read

SUFFIX: Final = ".token"
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def hosts_in(text: str) -> tuple[str, ...]:
    """The hosts of a list, one a line, each once; empty lines and what follows a ``#`` do not count. Raises
    SettingError."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        host = line.partition("#")[0].strip()
        if host and not _HOST.fullmatch(host):
            raise SettingError(f"line {number}: {host!r} is no host's name")
        if host:
            found.setdefault(host, number)
    if not found:
        raise SettingError("the list of hosts is empty")
    return tuple(found)


def add_workers(
    path: Path, hosts: Sequence[str], directory: Path, owner: str | None = None, expires: date | None = None
) -> tuple[str, ...]:
    """Make a hook's token for each host that has none yet, good for that host alone, each in ``directory/HOST.token``.

    Returns the hosts that got one. The hashes are written when all files are there; where that fails, they go again.

    Raises:
        SettingError: a file or the directory cannot be written, or is open to others.
    """
    present = {token.name for token in read(path)} if path.exists() else set()
    missing = [host for host in hosts if host not in present]
    there = [host for host in missing if (directory / f"{host}{SUFFIX}").exists()]
    if there:
        raise SettingError(
            f"{directory / there[0]}{SUFFIX} is there already, and {path} has no token of that name; remove the file"
        )
    made_directory = _made(directory, owner)
    staged: list[Path] = []

    def keep(tokens: Mapping[str, str]) -> None:
        for host, secret in tokens.items():
            staged.append(write_secret(directory / f"{host}{SUFFIX}", secret, owner))

    try:
        if missing:
            add_all(path, {host: (host,) for host in missing}, (Scope.HOOK,), expires, keep)
    except BaseException:
        for file in staged:
            file.unlink(missing_ok=True)
        if made_directory:
            directory.rmdir()
        raise
    return tuple(missing)


def write_secret(file: Path, secret: str, owner: str | None = None) -> Path:
    """Write a token to a file of its own, mode 0600 whatever the umask, in place of one that is there. Raises
    SettingError."""
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as opened:
                os.fchmod(opened.fileno(), 0o600)
                if owner is not None:
                    os.fchown(opened.fileno(), *_ids(owner))
                opened.write(secret + "\n")
                opened.flush()
                os.fsync(opened.fileno())
            fresh.replace(file)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise SettingError(f"{file}: cannot be written: {error.strerror or error}") from None
    return file


def _made(directory: Path, owner: str | None) -> bool:
    """Make the directory where there is none; True where it was made. Raises SettingError where others may write."""
    ids = None if owner is None else _ids(owner)
    try:
        if directory.is_dir():
            if directory.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise SettingError(f"{directory}: group or others may write there; accepted: mode 0700 or 0755")
            return False
        directory.mkdir(parents=True)
        directory.chmod(0o700)
        if ids is not None:
            os.chown(directory, *ids)
        return True
    except OSError as error:
        raise SettingError(f"{directory}: cannot be made: {error.strerror or error}") from None


def _ids(owner: str) -> tuple[int, int]:
    try:
        found = pwd.getpwnam(owner)
    except KeyError:
        raise SettingError(f"there is no user {owner} on this machine") from None
    return found.pw_uid, found.pw_gid
