"""The root file systems of the containers, each made once from Debian packages and kept in ``LAB_CACHE``.

What Lark's packages depend on is downloaded and not installed, so that apt installs it with them, without a network.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Final

from lab import rootfs
from lab.settings import LabSettings, from_environment

_SYSTEM: Final = (
    "apt", "ca-certificates", "curl", "dbus", "ethtool", "iproute2", "iputils-ping", "libnss-myhostname", "netbase",
    "openssl", "procps", "systemd", "systemd-sysv",
)  # fmt: skip
# Machines with HTCondor are of Debian testing, which has 24.7.3 or newer; their Python 3.11 is of Debian 12, and 3.13
# (that of Debian 13) their own.
_POOL: Final = (*_SYSTEM, "condor")
_NEEDS: Final = "libc6 libgcc-s1 libstdc++6 zlib1g"
_WORKER_NEEDS: Final = f"python3.11 python3.13 {_NEEDS} python3 iproute2 nftables openvswitch-switch sudo"
_DOWNLOAD: Final = (
    'rm -f "$1"/var/cache/apt/archives/*.deb; '
    "APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -qq -y --no-install-recommends --download-only install {packages}"
)
# Nobody answers apt's question; the site's users are the same everywhere.
_SETUP: Final = """set -e
printf 'APT::Get::Assume-Yes "true";\\nAPT::Install-Recommends "false";\\n' > "$1/etc/apt/apt.conf.d/99mmdebstrap"
rm -f "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
for user in {users}; do chroot "$1" useradd --create-home --shell /bin/bash --uid $((uid=${{uid:-2000}}+1)) $user; done
rm -f "$1/etc/hostname" "$1/etc/resolv.conf" "$1/etc/machine-id"
: > "$1/etc/machine-id"
! [ -d "$1/etc/condor" ] || chroot "$1" systemctl disable -q condor.service
chroot "$1" systemctl enable -q systemd-networkd.service"""


def controller(settings: LabSettings) -> Path:
    """Debian 12."""
    return _made(settings, "controller", _SYSTEM, f"python3.11 {_NEEDS}", "bookworm")


def newer(settings: LabSettings) -> Path:
    """Debian 13, for another controller."""
    return _made(settings, "newer", _SYSTEM, f"python3.13 {_NEEDS}", "trixie")


def pool(settings: LabSettings) -> Path:
    """Debian testing with HTCondor, and with Debian 12's packages beside."""
    return _made(settings, "pool", _POOL, _WORKER_NEEDS, settings.suite, "bookworm")


def _made(settings: LabSettings, name: str, packages: tuple[str, ...], needs: str, *suites: str) -> Path:
    hooks = (_DOWNLOAD.format(packages=needs), _SETUP.format(users=" ".join(rootfs.USERS)))
    key = hashlib.sha256("\0".join((*packages, *hooks, *suites, settings.mirror)).encode()).hexdigest()[:16]
    options = ["--skip=cleanup/apt", *(f"--customize-hook={hook}" for hook in hooks)]
    path = settings.cache / f"install-{name}-{key}"
    return rootfs.bootstrap(settings, path, packages, *suites, options=options, check=lambda made: None)


def main() -> None:
    """Make those that are named, or all: a program of its own, since the tests' network leads to no mirror."""
    settings = from_environment()
    made = {"controller": controller, "newer": newer, "pool": pool}
    for name in sys.argv[1:] or made:
        print(made[name](settings))


if __name__ == "__main__":
    main()
