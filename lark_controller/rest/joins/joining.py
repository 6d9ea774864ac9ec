"""Workers that join by a join token: what they get, and the certificates that are signed for them."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lark_common.errors import SettingError
from lark_common.settings_table import lines_of
from lark_controller.api.joins import ForeignJoin
from lark_controller.rest import tokens
from lark_controller.rest.joins import certificates
from lark_controller.rest.joins.certificates import Authority, Subject
from lark_controller.rest.joins.join_tokens import JoinTokens
from lark_controller.rest.whole_files import read
from lark_controller.settings import Listen, Settings

# Days for which a certificate of a worker that joins is good.
DAYS: Final = 1825
# The first letters of a join token, which say how the rest is to be read.
MARK: Final = "lark1"
_PREFIX: Final = "LARK_WORKER_"
_SSL: Final = re.compile(r"ssl:.*:([0-9]+)")


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a worker that joins: its host as the controller writes it, its certificate (PEM, None where none
    was asked for), its settings, the port for switches, and that on which its switch's database is to listen (None:
    on none). ``shows_certificate`` is true where the worker service needs the certificate too."""

    host: str
    certificate: str | None
    settings: Mapping[str, str]
    openflow_port: int
    ovsdb_port: int | None
    shows_certificate: bool


class Joining:
    """The controller's part of joining, by its settings.

    Raises SettingError at construction where they do not fit together.
    """

    def __init__(self, settings: Settings, join_tokens: JoinTokens) -> None:
        assert settings.join_settings is not None, "nobody may join without settings for workers"
        self._settings = settings
        self._template = settings.join_settings
        self.join_tokens = join_tokens
        self._authority = _authority(settings)
        # Nobody joins under a name of the controller: the certificate could pose as the controller.
        shown = certificates.read_certificates(_given(settings.rest_tls_cert))
        if not any(certificates.is_signed_by(each, self._authority.certificate) for each in shown):
            raise SettingError(
                f"LARK_JOIN_SETTINGS: workers that join know the controller by LARK_OPENFLOW_TLS_CA="
                f"{settings.openflow_tls_ca}, which has not signed LARK_REST_TLS_CERT={settings.rest_tls_cert}"
            )
        own = (*shown, *certificates.read_certificates(_given(settings.openflow_tls_cert)))
        self._reserved = tuple(name for each in own for name in certificates.subject_of(each).names)
        self._worker_settings()

    @property
    def authority(self) -> str:
        """The certificates (PEM) that a worker is to trust."""
        return self._authority.bundle.decode("ascii")

    @property
    def signs(self) -> bool:
        """True where certificates of workers are signed."""
        return self._authority.key is not None

    def token(self, secret: str) -> str:
        """The join token as the worker is given it: with the hash of what it is to trust before it asks."""
        pin = base64.urlsafe_b64encode(hashlib.sha256(self._authority.bundle).digest()).decode().rstrip("=")
        return f"{MARK}.{pin}.{secret}"

    def is_own_name(self, host: str) -> bool:
        """True of a name by which the controller itself is known."""
        return tokens.is_among(host, self._reserved)

    def admit(self, join: str | ForeignJoin, host: str, peer: str, sha256: str, request: str | None) -> Admission:
        """Let a host join with its own token's hash, and sign its request for a certificate where it has one. ``join``
        is the id of a join token, or somebody else's.

        Raises ValueError for a request that cannot be signed, NotFoundError and StateError as :meth:`JoinTokens.use`
        does, StoreError where the database is away, SettingError where a file is at fault. Whatever fails, the host may
        try again with the same hash.
        """
        public = None if request is None else certificates.read_request(request)
        settings = self._worker_settings()
        name = self.join_tokens.use(join, host, peer, sha256)
        signed = None
        if public is not None:
            signed = certificates.sign(self._authority, Subject((name,)), public, certificates.now(), DAYS)
        database = _SSL.fullmatch(self._settings.ovsdb)
        return Admission(
            host=name,
            certificate=None if signed is None else certificates.text(signed).decode("ascii"),
            settings=settings,
            openflow_port=_reached(self._settings.openflow_tls_listen),
            ovsdb_port=int(database[1]) if database else None,
            shows_certificate=self._settings.rest_tls_ca is not None,
        )

    def _worker_settings(self) -> dict[str, str]:
        """Read anew each time: a site changes them as it changes its workers."""
        content = read(self._template)
        if content is None:
            raise SettingError(f"LARK_JOIN_SETTINGS={self._template}: there is no such file")
        found = lines_of(content.decode("utf-8", "replace"))
        wrong = [name for name in found if not name.startswith(_PREFIX)]
        if wrong:
            raise SettingError(f"{self._template}: {wrong[0]}: accepted: settings of workers, LARK_WORKER_…")
        return found


def _authority(settings: Settings) -> Authority:
    path = _given(settings.openflow_tls_ca)
    chain = certificates.read_certificates(path)
    if not chain:
        raise SettingError(f"LARK_OPENFLOW_TLS_CA={path}: it has no certificate")
    key = None
    if settings.join_key is not None:
        key = certificates.read_key(settings.join_key)
        if key is None:
            raise SettingError(f"LARK_JOIN_KEY={settings.join_key}: there is no such file")
        for wrong in certificates.authority_mistakes(chain, key, certificates.now()):
            raise SettingError(f"LARK_JOIN_KEY={settings.join_key}, LARK_OPENFLOW_TLS_CA={path}: {wrong}")
    return Authority(chain[0], read(path) or b"", key)


def _given(path: Path | None) -> Path:
    assert path is not None, "settings that do not fit together are refused before"
    return path


def _reached(listens: Sequence[Listen]) -> int:
    return next((each.port for each in listens if not each.loopback), listens[0].port)
