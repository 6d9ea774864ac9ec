"""The certificates of one site: its authority, and a key and a certificate for each holder, as they are and as they
should be."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from cryptography import x509

from lark_controller.cli.setup.files import File, Rights, own
from lark_controller.rest.joins import certificates
from lark_controller.rest.joins.certificates import Authority, Subject
from lark_controller.rest.whole_files import read

# A certificate whose end is nearer is renewed.
SOON: Final = 30
# The life of an authority that is made here; to replace it means to visit every worker.
AUTHORITY_DAYS: Final = 7300


class Outcome(StrEnum):
    """The outcome for a file: it stays as it was, is made, or takes the place of one that ends."""

    KEPT = "kept"
    MADE = "made"
    RENEWED = "renewed"


@dataclass(frozen=True, slots=True)
class Pair:
    """A holder's certificate, the outcome for its file, and the files to be written for that."""

    path: Path
    outcome: Outcome
    certificate: x509.Certificate
    files: tuple[File, ...] = ()


@dataclass(slots=True)
class Certificates:
    """Reads and makes a site's certificates, and writes nothing.

    ``key_rights`` are those of a private authority's key.
    ``mistakes`` collects what is wrong with those that are there, and what to do.
    """

    directory: Path
    days: int
    renew: bool
    now: datetime
    key_rights: Rights
    mistakes: list[str] = field(default_factory=list)

    def authority(self, name: str, given: tuple[Path, Path] | None) -> tuple[Authority, Pair] | None:
        """The authority: the site's (its files), else the one in the directory, else a new one.

        None where it cannot be used; then there are mistakes. Raises SettingError.
        """
        path, own_key = self.directory / "ca.pem", self.directory / "ca" / "ca.key"
        there = certificates.read_certificates(path)
        if given is not None:
            return self._of_the_site(path, there, given)
        key = certificates.read_key(own_key)
        if there:
            wrong = list(certificates.authority_mistakes(there, key, self.now))
            ends = certificates.ends_within(there[0], self.now, SOON)
            if key is not None and self.renew and ends and certificates.belong(there[0], key):
                return self._new_authority(name, path, own_key, key, Outcome.RENEWED)
            self.mistakes += [f"{path}: {each}" for each in wrong]
            found = Authority(there[0], read(path) or b"", key)
            return None if wrong else (found, Pair(path, Outcome.KEPT, there[0]))
        return self._new_authority(name, path, own_key, key, Outcome.MADE)

    def _new_authority(
        self, name: str, path: Path, own_key: Path, key: certificates.Key | None, outcome: Outcome
    ) -> tuple[Authority, Pair]:
        """An authority with the key that is there, or a new one: what it has signed stays good with the same key."""
        used = key or certificates.new_key()
        made = certificates.new_authority(
            f"Lark at {name}"[: certificates.LONGEST_NAME], used, self.now, AUTHORITY_DAYS
        )
        files = [] if key is not None else [File(own_key, certificates.key_text(used), self.key_rights)]
        # Public, and every user of this machine who asks the controller needs it.
        files.append(File(path, made.bundle, own(0o644), replaces=outcome is Outcome.RENEWED))
        return made, Pair(path, outcome, made.certificate, tuple(files))

    def _of_the_site(
        self, path: Path, there: tuple[x509.Certificate, ...], given: tuple[Path, Path]
    ) -> tuple[Authority, Pair] | None:
        chain, key = certificates.read_certificates(given[0]), certificates.read_key(given[1])
        if not chain or key is None:
            self.mistakes += [f"{each}: there is no such file" for each in given if not each.exists()]
            self.mistakes += [f"{given[0]}: it has no certificate"] if given[0].exists() and not chain else []
            return None
        wrong = [f"{given[0]}: {each}" for each in certificates.authority_mistakes(chain, key, self.now)]
        replaces = bool(there) and there[0] != chain[0]
        if replaces and not (
            self.renew and certificates.belong(there[0], key) and there[0].subject == chain[0].subject
        ):
            wrong.append(
                f"{path}: it is another authority than {given[0]}; accepted: the same one, or, with --renew, a later "
                "certificate of it with the same name and key"
            )
        self.mistakes += wrong
        if wrong:
            return None
        bundle = b"".join(map(certificates.text, chain))
        found = Authority(chain[0], bundle, key)
        if there and not replaces:
            return found, Pair(path, Outcome.KEPT, chain[0])
        outcome = Outcome.RENEWED if replaces else Outcome.MADE
        return found, Pair(path, outcome, chain[0], (File(path, bundle, own(0o644), replaces=replaces),))

    def pair(self, authority: Authority, name: Path, subject: Subject, rights: Rights) -> Pair | None:
        """The certificate ``name.pem`` and the key ``name.key``, both with these rights.

        A renewed certificate is for the same key, so that no reader meets the two of different times. None where there
        are mistakes. Raises SettingError.
        """
        path, key_path = name.with_name(f"{name.name}.pem"), name.with_name(f"{name.name}.key")
        there = certificates.read_certificates(path)
        key = certificates.read_key(key_path)
        outcome = Outcome.MADE
        if there:
            anew = f"remove {path} and {key_path} to have them made anew"
            if key is None:
                self.mistakes.append(f"{key_path}: the key of {path} is missing; put it back, or remove {path}")
                return None
            if not certificates.belong(there[0], key):
                self.mistakes.append(f"{path}: it is for another key than {key_path}; {anew}")
                return None
            if not certificates.is_signed_by(there[0], authority.certificate):
                self.mistakes.append(f"{path}: {self.directory / 'ca.pem'} has not signed it; {anew}")
                return None
            known = certificates.subject_of(there[0])
            lacks = str(subject.without(known))
            if lacks and not self.renew:
                self.mistakes.append(f"{path}: it is not for {lacks}; --renew makes it anew, with the same key")
                return None
            if not (self.renew and (lacks or certificates.ends_within(there[0], self.now, SOON))):
                return Pair(path, Outcome.KEPT, there[0])
            # A renewal takes no name away that clients may use.
            outcome, subject = Outcome.RENEWED, subject.with_all(known)
        if authority.key is None:
            self.mistakes.append(
                f"{path}: the authority's key is needed to sign it; accepted: --ca-cert and --ca-key, or the key in "
                f"{self.directory / 'ca' / 'ca.key'}"
            )
            return None
        used = key or certificates.new_key()
        signed = certificates.sign(authority, subject, used.public_key(), self.now, self.days)
        files = [] if key is not None else [File(key_path, certificates.key_text(used), rights)]
        files.append(File(path, certificates.text(signed), rights, replaces=outcome is Outcome.RENEWED))
        return Pair(path, outcome, signed, tuple(files))
