"""HTCondor of a newer Debian on an older one, with the libraries of the newer one in a directory of their own.

Workers need HTCondor 24.7.3 or newer. Debian 12 has none, Debian 13 an older one, and HTCondor's own repository is not
asked. So the programs of Debian testing stand at their places, as another package would have them, and nothing else of
such a worker is newer: its systemd, Open vSwitch, sudo, Python and the jobs' programs are those of its Debian.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lab.run import run

LIBRARIES: Final = "/opt/condor/lib"
_COPY: Final = 'tar -C "$1" --no-recursion -cf - -T - | tar -C "$2" -xf -'
# As the package's own script has it.
_USER: Final = """set -e
useradd --system --user-group --home-dir /var/lib/condor --shell /usr/sbin/nologin condor
install -d -o condor -g condor /var/lib/condor /var/log/condor
install -d /usr/share/condor/config.d
"""
_TIMEOUT: Final = 120


def bring(source: Path, root: Path) -> None:
    """Add the HTCondor of the root file system ``source`` to ``root``."""
    files = _files(source)
    _copy(source, root, files)
    (libraries,) = {path.parent for path in source.glob("usr/lib/*-linux-gnu/ld-linux*.so.*")}
    found = [path.name for path in libraries.iterdir() if ".so" in path.name and not path.is_dir()]
    target = root / LIBRARIES[1:]
    target.mkdir(parents=True)
    _copy(libraries, target, found)
    (loader,) = target.glob("ld-linux*.so.*")
    for name in files:
        if is_program(root / name):
            # The programs' own libraries are in /usr/lib, where Debian has no others.
            run(
                ["patchelf", "--set-interpreter", f"{LIBRARIES}/{loader.name}", "--force-rpath",
                 "--set-rpath", f"{LIBRARIES}:/usr/lib", str(root / name)],
                timeout=_TIMEOUT,
            )  # fmt: skip
    run(["chroot", str(root), "sh", "-c", _USER], timeout=_TIMEOUT)
    # A library that is missing shows here, and not in a test.
    run(["chroot", str(root), "condor_startd", "-version"], timeout=_TIMEOUT)


def _files(source: Path) -> list[str]:
    """The files of the package that are there, relative to the root: no directories, and no pages of its manual."""
    listed = (source / "var/lib/dpkg/info/condor.list").read_text().splitlines()
    paths = [source / name[1:] for name in listed if name != "/."]
    return [str(path.relative_to(source)) for path in paths if path.is_symlink() or path.is_file()]


def _copy(source: Path, target: Path, names: list[str]) -> None:
    run(
        ["bash", "-o", "pipefail", "-c", _COPY, "copy", str(source), str(target)],
        timeout=_TIMEOUT, stdin="\n".join(names) + "\n",
    )  # fmt: skip


def is_program(path: Path) -> bool:
    """True if the kernel starts the file by a loader; not for scripts and libraries."""
    if path.is_symlink():
        return False
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return False
    return run(["patchelf", "--print-interpreter", str(path)], check=False).returncode == 0
