"""Files as ``lark setup`` writes them: whole or not at all, and with their owner and mode from the first byte on."""

from __future__ import annotations

import os
import pwd
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lark_common.errors import SettingError


@dataclass(frozen=True, slots=True)
class Rights:
    """Mode and owner of a file or directory."""

    mode: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Service:
    """The user that the controller runs as, with all its groups."""

    name: str
    uid: int
    gid: int
    home: str
    groups: tuple[int, ...]

    @property
    def is_caller(self) -> bool:
        """True where this process is that user's own."""
        return self.uid == os.geteuid()

    @property
    def reads(self) -> Rights:
        """For what the controller reads and may not change."""
        return Rights(0o640, os.geteuid(), self.gid)

    @property
    def owns(self) -> Rights:
        """For what is the controller's alone."""
        return Rights(0o600, self.uid, self.gid)

    def may(self, status: os.stat_result, needed: int) -> bool:
        """True where that user may do so much (the bits of others) with a file or directory of that status."""
        if self.uid == 0:
            return True
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid in self.groups else 0
        return (status.st_mode >> shift) & needed == needed


def service_user(name: str) -> Service:
    """The user that the controller runs as. Raises SettingError where there is none, or this process cannot give it
    files."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise SettingError(
            f"there is no user {name} on this machine; install the package lark-controller, which makes it, or name "
            "the user that the controller runs as: --user"
        ) from None
    if os.geteuid() not in (0, found.pw_uid):
        raise SettingError(f"the files are to be read by the user {name} alone: run this command as root")
    groups = tuple(os.getgrouplist(name, found.pw_gid))
    return Service(name, found.pw_uid, found.pw_gid, found.pw_dir, groups)


def own(mode: int) -> Rights:
    """The rights of a file that belongs to whoever runs this command, which is root."""
    return Rights(mode, os.geteuid(), os.getegid())


@dataclass(frozen=True, slots=True)
class File:
    """A file to be written. Where ``replaces`` is false, one that is there by then stays, and that is an error."""

    path: Path
    content: bytes = field(repr=False)
    rights: Rights
    replaces: bool = False

    def write(self) -> None:
        """Write it beside its place and put it there. Raises SettingError."""
        fresh = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    _give(file.fileno(), self.rights)
                    file.write(self.content)
                if self.replaces:
                    fresh.replace(self.path)
                else:
                    # A link is never made over a file that is there, as a rename would be.
                    self.path.hardlink_to(fresh)
            finally:
                fresh.unlink(missing_ok=True)
        except OSError as error:
            raise SettingError(f"{self.path}: cannot be written: {error.strerror or error}") from None


def make_directory(path: Path, rights: Rights) -> None:
    """Make a directory where there is none. Raises SettingError."""
    try:
        if path.is_dir():
            return
        path.mkdir(mode=0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _give(descriptor, rights)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SettingError(f"{path}: cannot be made: {error.strerror or error}") from None


def _give(descriptor: int, rights: Rights) -> None:
    # The owner first: a change of owner takes bits of the mode away.
    if (rights.uid, rights.gid) != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, rights.uid, rights.gid)
    os.fchmod(descriptor, rights.mode)


def directory_mistakes(directory: Path, service: Service) -> Iterator[str]:
    """Reasons why a directory, which need not be there, cannot be the one of all files."""
    if not directory.exists():
        if not directory.parent.is_dir():
            yield f"{directory}: there is no directory {directory.parent} to make it in"
            return
        status = directory.parent.stat()
        # In a directory like /tmp others may make files, and not take away those of root.
        is_shared = _is_shared(status) and not status.st_mode & stat.S_ISVTX
    elif not directory.is_dir():
        yield f"{directory}: it is no directory"
        return
    else:
        is_shared = _is_shared(directory.stat())
    there = directory if directory.exists() else directory.parent
    if is_shared:
        yield f"{there}: others may write there; accepted: a directory of root's, mode 0755 or 0750"
    for each in (directory / "ca", directory / "workers"):
        if each.exists() and (not each.is_dir() or _is_shared(each.lstat())):
            yield f"{each}: it is no directory, or others may write there; accepted: a directory of root's, mode 0700"
    for each in (there, *there.parents):
        if not service.may(each.stat(), 1):
            yield f"{each}: the user {service.name} cannot enter it; accepted: mode 0755, or 0750 and its group"
            return


def _is_shared(status: os.stat_result) -> bool:
    """True where others than root, and whoever runs this command, may write."""
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)) or status.st_uid not in (0, os.geteuid())
