"""Tokens that HTCondor's own condor_token_create makes, out of the lab's root file system, are verified."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import rootfs
from lab.__main__ import NO_MIRROR
from lab.settings import from_environment
from lark_controller.rest.identities.identities import Identities, RefusedTokenError
from lark_controller.rest.tokens import Scope
from tests.fixtures import own_network
from tests.fixtures.issuers import write_issuers

_CONFIG = """\
SEC_PASSWORD_DIRECTORY = /tmp/keys
SEC_TOKEN_POOL_SIGNING_KEY_FILE = /tmp/keys/POOL
TRUST_DOMAIN = pool.example
COLLECTOR_HOST = 127.0.0.1:9618
CONDOR_HOST = 127.0.0.1
NETWORK_INTERFACE = 127.0.0.1
NETWORK_HOSTNAME = create.test
DEFAULT_DOMAIN_NAME = test
NO_DNS = True
ENABLE_IPV6 = False
CONDOR_IDS = 0.0
LOG = /tmp
"""
# Everything that is mounted goes with the mount namespace.
_MAKE = """\
set -e
mount -t tmpfs tmp "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay root -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs tmp "$1/root/tmp"
cp -a "$3" "$1/root/tmp/keys"
cat >"$1/root/tmp/condor_config"
root=$1/root
shift 3
exec env -i PATH=/usr/sbin:/usr/bin CONDOR_CONFIG=/tmp/condor_config chroot "$root" condor_token_create "$@"
"""


@pytest.fixture(scope="module")
def system() -> Path:
    done = own_network.run_outside([sys.executable, "-m", "lab", "build"])
    if done.returncode == NO_MIRROR:
        pytest.skip(f"NO TOKEN OF HTCONDOR'S WAS MADE, the lab's root file system is not built: {done.stdout}")
    assert done.returncode == 0, done.stdout
    return rootfs.build(from_environment()).layers[-1]


def created(system: Path, folder: Path, keys: Path, *arguments: str) -> str:
    """The token that condor_token_create makes."""
    folder.mkdir(exist_ok=True)
    command = ["unshare", "--mount", "sh", "-c", _MAKE, "create", str(folder), str(system), str(keys), *arguments]
    done = subprocess.run(command, input=_CONFIG, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_tokens_of_condor_token_create(system: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    # Bytes of every kind: HTCondor's keys are random, and have zeros in them.
    for name, length in (("POOL", 64), ("other", 256), ("short", 5)):
        (keys / name).write_bytes(os.urandom(length - 2) + b"\xde\xad")
        (keys / name).chmod(0o600)
    entry = {
        "issuer": "pool.example", "signing_keys": str(keys),
        "scopes": {"hook": {"scope": "condor:/ADVERTISE_STARTD"}, "self": "everyone"},
    }  # fmt: skip
    identities = Identities.of_file(write_issuers(tmp_path / "jwt.yaml", entry))
    for name in ("POOL", "other", "short"):
        lifetime = ("-key", name, "-lifetime", "600")
        worker = identities.token(
            created(
                system, tmp_path / "root", keys, "-identity", "w1.example@pool.example", "-authz", "READ",
                "-authz", "ADVERTISE_STARTD", *lifetime,
            )
        )  # fmt: skip
        assert (worker.scopes, worker.hosts) == (frozenset({Scope.HOOK}), ("w1.example",))
        secret = created(system, tmp_path / "root", keys, "-identity", "alice@pool.example", *lifetime)
        assert identities.token(secret).user == "alice"
        (keys / name).write_bytes(os.urandom(64))
        with pytest.raises(RefusedTokenError, match="signature"):
            identities.token(created(system, tmp_path / "root", _old(tmp_path, name), "-identity", "a@b", *lifetime))


def _old(directory: Path, name: str) -> Path:
    """Keys that are not the pool's."""
    keys = directory / "old"
    keys.mkdir(mode=0o700, exist_ok=True)
    (keys / name).write_bytes(os.urandom(64))
    (keys / name).chmod(0o600)
    return keys
