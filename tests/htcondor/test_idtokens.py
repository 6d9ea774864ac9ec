"""Tokens that HTCondor's own condor_token_create makes, out of the lab's root file system: they are verified, and a
worker joins by one."""

from __future__ import annotations

import base64
import hashlib
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
from lark_controller.store import Store
from lark_worker.join import Place, has_certificate, read_join_token
from lark_worker.network.commands import run
from tests.fixtures import own_network
from tests.fixtures.databases import sqlite_with_tables
from tests.fixtures.issuers import write_issuers
from tests.fixtures.join_api import HOST, JoinApi

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


def test_a_worker_joins_by_a_token_of_condor_token_create(system: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    (keys / "lark").write_bytes(os.urandom(64))
    (keys / "lark").chmod(0o600)
    entry = {
        "issuer": "pool.example", "signing_keys": str(keys), "joins": True,
        "scopes": {"hook": {"scope": "condor:/ADVERTISE_STARTD"}, "self": "everyone"},
    }  # fmt: skip
    identities = Identities.of_file(write_issuers(tmp_path / "jwt.yaml", entry))

    def made(identity: str, *words: str) -> str:
        given = ("-key", "lark", "-identity", identity, "-lifetime", "7200", *words)
        return created(system, tmp_path / "root", keys, *given)

    secret = made(f"{HOST}@pool.example", "-authz", "ADVERTISE_STARTD")
    place = Place(tmp_path / "worker")
    place.directory.mkdir()
    run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(place.key)])
    request = run(["openssl", "req", "-new", "-key", str(place.key), "-subj", f"/CN={HOST}"])
    store = Store.open(sqlite_with_tables(tmp_path / "lark.db"))
    try:
        api = JoinApi(tmp_path, store, identities)
        pin = base64.urlsafe_b64encode(hashlib.sha256(api.authority.encode()).digest()).decode().rstrip("=")
        # The worker takes it as any join token, with the hash of the authority before it.
        given = read_join_token(f"lark1.{pin}.{secret}\n")
        assert (given.secret, given.pin.hex()) == (secret, hashlib.sha256(api.authority.encode()).hexdigest())
        answer = api.join(given.secret, request=request)
        assert answer.status_code == 200, answer.text
        place.authority.write_text(api.authority)
        place.certificate.write_text((answer.json or {})["certificate"])
        assert has_certificate(place)
        assert [each["host"] for each in api.workers()] == [HOST]
        for other, words in (
            (made("worker2.example@pool.example", "-authz", "ADVERTISE_STARTD"), "is for worker2.example"),
            (made(f"{HOST}@pool.example", "-authz", "READ"), "Nobody joins by this token"),
            (made("alice@pool.example"), "Nobody joins by this token"),
        ):
            refused = api.join(other, "lark_another", request=request)
            assert refused.status_code in (401, 403), refused.text
            assert words in refused.text
    finally:
        store.close()


def _old(directory: Path, name: str) -> Path:
    """Keys that are not the pool's."""
    keys = directory / "old"
    keys.mkdir(mode=0o700, exist_ok=True)
    (keys / name).write_bytes(os.urandom(64))
    (keys / name).chmod(0o600)
    return keys
