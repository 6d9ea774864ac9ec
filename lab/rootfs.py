"""Builds the lab's root file system: once from Debian packages, once for the project's requirements, and cached.

Two layers, each a directory that is complete when it has its name: the system (``mmdebstrap``, which lets apt verify
every package against the archive's signature) and, laid over it, ``/opt/lark`` with what the project requires. Neither
is written again. The project itself is laid over both at every start, see ``lab.boot``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import mirror
from lab.run import LabError, run
from lab.settings import LabSettings

PACKAGES = (
    "ca-certificates", "condor", "curl", "dnsmasq-base", "ethtool", "iperf3", "iproute2", "iputils-ping", "jq",
    "kmod", "less", "netcat-openbsd", "nftables", "openssh-client", "openssh-server", "openvswitch-switch",
    "postgresql", "procps", "python3", "python3-venv", "sudo", "tcpdump", "udhcpc", "user-mode-linux",
    "util-linux-extra",
)  # fmt: skip
# The versions with which the lab was tried; a mirror that has older ones would fail later and with less to read.
AT_LEAST = {"condor": "25", "openvswitch-switch": "3.5", "user-mode-linux": "7.2"}
# Ordinary users, in the root file system so that every machine of the pool agrees on their numbers.
USERS = ("alice", "bob", "carol", "mallory")
UNWANTED = ("doc", "man", "locale", "info")
MANIFEST = "etc/lark-lab.manifest"
BUILD_TIMEOUT = 1800
MISSING_TOOL = "mmdebstrap is not installed: apt-get install mmdebstrap debian-archive-keyring"

_SETUP = """set -e
for user in {users}; do useradd --create-home --shell /bin/bash --uid $((uid=${{uid:-2000}}+1)) "$user"; done
mkdir -p /lark
# The directory of the modules of User Mode Linux.
ln -s uml/modules /usr/lib/modules
: > /etc/resolv.conf
: > /etc/pip.conf
dpkg-query -W > /{manifest}
"""

# setuptools builds the project later, without the network, and is not in its lock.
_VENV = """set -e
python3 -m venv /opt/lark
/opt/lark/bin/pip install --no-cache-dir -q -c /mnt/constraints.txt -r /mnt/requirements.in 'setuptools>=77'
"""


@dataclass(frozen=True, slots=True)
class RootFs:
    """Directories, topmost first, which laid over each other are the lab's root."""

    layers: tuple[Path, ...]


def build(settings: LabSettings, packages: Sequence[str] = ()) -> RootFs:
    """The cached root file system, built first if need be; one with further ``packages`` stands beside it.

    Raises MirrorError if the mirror cannot be reached; LabError if none is named, a tool is missing, a signature does
    not fit, or a package is too old.
    """
    system = _system(settings, (*PACKAGES, *packages))
    return RootFs((_requirements(settings, system), system))


def _key(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """Let one process build at a time: another that needs the same directory finds it afterwards."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "building").open("w") as building:
        fcntl.flock(building, fcntl.LOCK_EX)
        yield


def apt_options(dump: str) -> list[str]:
    """The ``Acquire`` settings (proxies, dates, time limits) in the output of ``apt-config dump``."""
    return [line for line in dump.splitlines() if re.match(r'Acquire::[^"]*\S "[^"]+";$', line)]


def _system(settings: LabSettings, packages: tuple[str, ...]) -> Path:
    key = _key(settings.suite, settings.mirror, packages, USERS, UNWANTED, _SETUP)
    path = settings.cache / f"system-{settings.suite}-{key}"
    setup = _SETUP.format(users=" ".join(USERS), manifest=MANIFEST)
    hooks = [
        f"chroot \"$1\" sh -c '{setup}'",
        # The host's proxy and dates were for the build alone.
        'rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"',
    ]
    return bootstrap(
        settings, path, packages, settings.suite, options=[f"--customize-hook={hook}" for hook in hooks],
        finish=lambda made: check_versions(run(["cat", str(made / MANIFEST)]).stdout),
    )  # fmt: skip


def bootstrap(
    settings: LabSettings,
    path: Path,
    packages: Sequence[str],
    *suites: str,
    options: Sequence[str],
    finish: Callable[[Path], None],
) -> Path:
    """The root file system at ``path``, made by mmdebstrap from ``packages`` of the first of ``suites`` if it is not
    there. Packages that it lacks come from the others.

    ``options`` are further ones of mmdebstrap, and ``finish`` checks or completes the directory before it has its name.
    Raises LabError as :func:`build` does, and what ``finish`` raises.
    """
    if path.is_dir():
        return path
    with _alone(settings.cache):
        if not path.is_dir():
            _bootstrap(settings, path, packages, suites, options, finish)
    return path


def _bootstrap(
    settings: LabSettings,
    path: Path,
    packages: Sequence[str],
    suites: Sequence[str],
    options: Sequence[str],
    finish: Callable[[Path], None],
) -> None:
    if shutil.which("mmdebstrap") is None:
        raise LabError(MISSING_TOOL)
    archive = mirror.debian_archive(mirror.read_sources()) if not settings.mirror else None
    uri = archive.uri if archive else settings.mirror
    keyring = settings.keyring or (archive.signed_by if archive else "") or mirror.DEBIAN_KEYRING
    if not Path(keyring).is_file():
        raise LabError(f"{keyring}: no such keyring; install debian-archive-keyring, or set LAB_KEYRING")
    for suite in suites:
        mirror.check_reachable(uri, suite)
    print(f"lab: building a root file system from {' and '.join(suites)} of {uri}, once", file=sys.stderr)
    partial = settings.cache / f"{path.name}.{os.getpid()}.partial"
    command = [
        "mmdebstrap", "--mode=root", "--variant=minbase", "--components=main", f"--include={','.join(packages)}",
        '--aptopt=APT::Install-Recommends "false"', f"--keyring={keyring}",
        *(f"--aptopt={line}" for line in apt_options(run(["apt-config", "dump"]).stdout)),
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in UNWANTED),
        *options, suites[0], str(partial), *(f"deb {uri} {suite} main" for suite in suites),
    ]  # fmt: skip
    try:
        run(command, timeout=BUILD_TIMEOUT)
        finish(partial)
    except LabError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    partial.rename(path)


def check_versions(manifest: str) -> None:
    """Raise LabError if ``manifest`` (``dpkg-query -W``) has a package older than the lab was tried with."""
    versions = dict(line.split("\t", 1) for line in manifest.splitlines() if "\t" in line)
    for package, least in AT_LEAST.items():
        have = versions.get(package, "")
        older = subprocess.run(["dpkg", "--compare-versions", have or "0", "lt", least], check=False).returncode == 0
        if older:
            found = f"{package} {have or '(absent)'}"
            raise LabError(f"{found}: the lab needs {least} or newer; set LAB_SUITE or LAB_MIRROR")


def constraints(lock: str) -> str:
    """The versions of a lock without its hashes, as pip's constraints.

    The lock is made for one Python. Another one, such as the root file system's, may need a distribution that the lock
    has no hash for, and pip checks either all hashes or none. The markers stay: a distribution may have one version
    for older Pythons and one for newer.
    """
    pinned = re.findall(
        r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)[ \t]*(;[^\\\n]*[^\\\s])?", lock, flags=re.MULTILINE
    )
    return "".join(f"{name}=={version}{' ' if marker else ''}{marker}\n" for name, version, marker in pinned)


def _requirements(settings: LabSettings, system: Path) -> Path:
    wanted = (settings.source / "requirements.in").read_text()
    versions = constraints((settings.source / "requirements.txt").read_text())
    path = settings.cache / f"python-{_key(system.name, _VENV, wanted, versions)}"
    if path.is_dir():
        return path
    with _alone(settings.cache):
        if path.is_dir():
            return path
        print("lab: installing what the project requires into the root file system, once", file=sys.stderr)
        partial = settings.cache / f"{path.name}.{os.getpid()}.partial"
        try:
            install([system], partial, {"requirements.in": wanted, "constraints.txt": versions}, _VENV, network=True)
        except LabError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        partial.rename(path)
    return path


def install(
    lower: Sequence[Path], upper: Path, files: dict[str, str] | Path, command: str, *, network: bool = False
) -> None:
    """Run ``command`` in the layers ``lower`` and leave what it writes in the new layer ``upper``.

    ``files`` are there under ``/mnt``: texts by name, or a directory. With ``network`` the machine's resolver,
    certificates and pip settings are lent for the time of the command. Everything mounted goes with the mount
    namespace.

    Raises LabError if the command fails.
    """
    stage = upper.with_name(upper.name + ".stage")
    stage.mkdir(parents=True)
    upper.mkdir()
    try:
        for name in ("work", "root", "files"):
            (stage / name).mkdir()
        if isinstance(files, dict):
            for name, text in files.items():
                (stage / "files" / name).write_text(text)
            files = stage / "files"
        root = stage / "root"
        lent = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl", "/etc/pip.conf") if network else ()
        overlay = f"lowerdir={':'.join(map(str, lower))},upperdir={upper},workdir={stage}/work"
        lines = [
            "set -e",
            f"mount -t overlay lab -o {overlay} {root}",
            f"mount -t proc proc {root}/proc",
            f"mount -t tmpfs tmp {root}/tmp",
            f"mount --bind {files} {root}/mnt",
            *(f"mount --bind {path} {root}{path}" for path in lent if Path(path).exists()),
            f'exec env -u PIP_FIND_LINKS HOME=/tmp PYTHONDONTWRITEBYTECODE=1 chroot {root} sh -c "$1"',
        ]
        run(["unshare", "--mount", "sh", "-c", "\n".join(lines), "lab", command], timeout=BUILD_TIMEOUT)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
