"""The root file systems of the containers, each made once from Debian packages and kept in ``LAB_CACHE``.

Programs that Lark's packages and pages need are not among them. What the packages depend on and recommend is downloaded
and not installed, so that apt installs it with them, without a network.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from lab import rootfs
from lab.settings import LabSettings, from_environment
from tests.install import htcondor

_SYSTEM: Final = ("apt", "dbus", "libnss-myhostname", "netbase", "procps", "systemd", "systemd-sysv")
# The suites of Debian 12 and 13, each with the Python of its packages.
_PYTHONS: Final = {"bookworm": "python3.11", "trixie": "python3.13"}
_NEEDS: Final = "libc6 libgcc-s1 libstdc++6 zlib1g"
_CONTROLLER_NEEDS: Final = f"{_NEEDS} ca-certificates curl openssl"
_WORKER_NEEDS: Final = f"{_NEEDS} curl iproute2 iputils-ping nftables openssl openvswitch-switch python3 sudo"
_DOWNLOAD: Final = (
    'rm -f "$1"/var/cache/apt/archives/*.deb; '
    "APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -qq -y -o APT::Install-Recommends=true --download-only "
    "install {packages}"
)
# Nobody answers apt's question; the site's users are the same everywhere.
_SETUP: Final = """set -e
echo 'APT::Get::Assume-Yes "true";' > "$1/etc/apt/apt.conf.d/99mmdebstrap"
rm -f "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
for user in {users}; do chroot "$1" useradd --create-home --shell /bin/bash --uid $((uid=${{uid:-2000}}+1)) $user; done
rm -f "$1/etc/hostname" "$1/etc/resolv.conf" "$1/etc/machine-id"
: > "$1/etc/machine-id"
! [ -d "$1/etc/condor" ] || chroot "$1" systemctl disable -q condor.service
chroot "$1" systemctl enable -q systemd-networkd.service"""


def controller(settings: LabSettings, suite: str = "bookworm") -> Path:
    """Debian 12, or 13 (trixie)."""
    return _made(settings, suite, "controller", _SYSTEM, f"{_PYTHONS[suite]} {_CONTROLLER_NEEDS}")


def worker(settings: LabSettings, suite: str) -> Path:
    """Debian 12 or 13 with the HTCondor of :func:`pool`."""
    newer = pool(settings)
    bring = Path(htcondor.__file__).read_text()
    needs = f"{_PYTHONS[suite]} {_WORKER_NEEDS}"
    return _made(settings, suite, "worker", _SYSTEM, needs, newer.name, bring, finish=partial(htcondor.bring, newer))


def pool(settings: LabSettings) -> Path:
    """Debian testing, which has an HTCondor that is new enough."""
    return _made(settings, settings.suite, "pool", (*_SYSTEM, "condor"), "")


def _made(
    settings: LabSettings,
    suite: str,
    name: str,
    packages: tuple[str, ...],
    needs: str,
    *also: str,
    finish: Callable[[Path], None] = lambda made: None,
) -> Path:
    """The root file system ``name``; a change of ``also`` makes it anew as well."""
    hooks = (_DOWNLOAD.format(packages=needs), _SETUP.format(users=" ".join(rootfs.USERS)))
    key = hashlib.sha256("\0".join((*packages, *hooks, suite, settings.mirror, *also)).encode()).hexdigest()[:16]
    options = ["--skip=cleanup/apt", *(f"--customize-hook={hook}" for hook in hooks)]
    path = settings.cache / f"install-{name}-{suite}-{key}"
    return rootfs.bootstrap(settings, path, packages, suite, options=options, finish=finish)


def main() -> None:
    """Make all, or Debian 12's controller alone: a program of its own, since the tests' network leads to no mirror."""
    settings = from_environment()
    print(controller(settings))
    if sys.argv[1:] != ["controller"]:
        print(controller(settings, "trixie"), worker(settings, "bookworm"), worker(settings, "trixie"))


if __name__ == "__main__":
    main()
