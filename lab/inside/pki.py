"""The lab's certificate authority, and a certificate for the controller and each machine with Open vSwitch.

The controller writes to the switches' databases. Jobs can reach the address on which those listen, so they listen for
the authority's certificates alone. Runs as root inside the lab. Standard library only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lab.inside.machines import DIRECTORY, write
from lab.inside.topology import DOMAIN
from lab.run import run

AUTHORITY: Final = DIRECTORY / "authority"
FOLDER: Final = "/etc/lark/pki"
KEY, CERTIFICATE, CA = f"{FOLDER}/key.pem", f"{FOLDER}/cert.pem", f"{FOLDER}/ca.pem"
_KEY_KIND: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650")


def make(names: list[str]) -> None:
    """Make the authority and what is missing of the certificates of ``names``, beside the machines."""
    AUTHORITY.mkdir(mode=0o700, exist_ok=True)
    own, key = AUTHORITY / "ca.pem", AUTHORITY / "ca.key"
    if not own.exists():
        _openssl("-subj", "/CN=lab", "-keyout", str(key), "-out", str(own))
    for name in names:
        if not _certificate(name).exists():
            signed = ("-CA", str(own), "-CAkey", str(key), "-addext", f"subjectAltName=DNS:{name}.{DOMAIN}")
            out = ("-keyout", str(_key(name)), "-out", str(_certificate(name)))
            _openssl("-subj", f"/CN={name}.{DOMAIN}", *signed, *out)


def install(name: str) -> None:
    """Give a machine its key, its certificate and the authority's."""
    write(name, KEY, _key(name).read_text(), mode=0o600)
    write(name, CERTIFICATE, _certificate(name).read_text())
    write(name, CA, (AUTHORITY / "ca.pem").read_text())


def _openssl(*arguments: str) -> None:
    run(["openssl", "req", "-x509", *_KEY_KIND, *arguments])


def _key(name: str) -> Path:
    return AUTHORITY / f"{name}.key"


def _certificate(name: str) -> Path:
    return AUTHORITY / f"{name}.pem"
