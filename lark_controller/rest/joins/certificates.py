"""X.509 certificates: an authority's own, and those that it signs, all with P-256 keys.

Python 3.13 checks chains by RFC 5280 to the letter, so that every certificate has the key identifiers and uses that
the standard asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lark_common.errors import SettingError
from lark_common.runs import Address
from lark_controller.rest.whole_files import read

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

# A certificate is valid from a day before, for clocks that are behind.
_BEFORE: Final = timedelta(days=1)
# A common name in X.509 has at most so many characters.
LONGEST_NAME: Final = 64
_RSA_BITS: Final = (2048, 4096)


@dataclass(frozen=True, slots=True)
class Subject:
    """The holder of a certificate. The first name is the common name, by which the controller recognises a switch."""

    names: tuple[str, ...]
    addresses: tuple[Address, ...] = ()

    def __str__(self) -> str:
        return ", ".join(map(str, (*self.names, *self.addresses)))

    def without(self, other: Subject) -> Subject:
        """The names and addresses of this one that the other lacks."""
        names = {name.lower() for name in other.names}
        return Subject(
            tuple(name for name in self.names if name.lower() not in names),
            tuple(each for each in self.addresses if each not in other.addresses),
        )

    def with_all(self, other: Subject) -> Subject:
        """This one, and what the other has beside."""
        more = other.without(self)
        return Subject((*self.names, *more.names), (*self.addresses, *more.addresses))


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority: its certificate, the file (PEM) with those above it, and its key where it can sign."""

    certificate: x509.Certificate
    bundle: bytes
    key: Key | None


def new_key() -> Key:
    """A new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_text(key: Key) -> bytes:
    """A private key as PEM, without a passphrase."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def text(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def new_authority(name: str, key: Key, now: datetime, days: int) -> Authority:
    """An authority that signs itself, and no other authorities."""
    public = _public(key)
    signed = (
        _builder(_named(name), _named(name), public, now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_use(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(signed, text(signed), key)


def sign(authority: Authority, subject: Subject, public: PublicKey, now: datetime, days: int) -> x509.Certificate:
    """A certificate for a holder who is client and server, until ``days`` from now or the authority's own end."""
    assert authority.key is not None, "an authority without its key signs nothing"
    end = min(now + timedelta(days=days), authority.certificate.not_valid_after_utc)
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in subject.names]
    names += [x509.IPAddress(address) for address in subject.addresses]
    builder = (
        _builder(_named(subject.names[0]), authority.certificate.subject, public, now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_use(digital_signature=True), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(_identifier(authority.certificate), critical=False)
    )
    return builder.sign(authority.key, hashes.SHA256())


def read_certificates(path: Path) -> tuple[x509.Certificate, ...]:
    """The certificates of a file, none where there is no file. Raises SettingError."""
    content = read(path)
    if content is None:
        return ()
    try:
        return tuple(x509.load_pem_x509_certificates(content))
    except ValueError:
        raise SettingError(f"{path}: it is no certificate; accepted: PEM (-----BEGIN CERTIFICATE-----)") from None


def read_key(path: Path) -> Key | None:
    """The private key of a file, None where there is no file. Raises SettingError."""
    content = read(path)
    if content is None:
        return None
    accepted = "accepted: an EC or RSA key in PEM without a passphrase"
    try:
        key = serialization.load_pem_private_key(content, None)
    except TypeError:
        raise SettingError(f"{path}: it has a passphrase; {accepted}") from None
    except ValueError:
        raise SettingError(f"{path}: it is no private key; {accepted}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise SettingError(f"{path}: it is a key of another kind; {accepted}")
    return key


def read_request(text: str) -> PublicKey:
    """The key of a request for a certificate (PEM), which its sender has proven to hold; its names are not looked at.

    Raises ValueError with what is accepted.
    """
    accepted = "accepted: a request in PEM, signed with its own EC (P-256, P-384) or RSA key (2048 to 4096 bits)"
    try:
        request = x509.load_pem_x509_csr(text.encode("ascii"))
        public = request.public_key()
        # The length of a key decides what the check of a signature costs.
        if not _is_usual(public) or not request.is_signature_valid:
            raise ValueError("another key")
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        raise ValueError(accepted) from None
    assert isinstance(public, ec.EllipticCurvePublicKey | rsa.RSAPublicKey)
    return public


def _is_usual(public: object) -> bool:
    if isinstance(public, ec.EllipticCurvePublicKey):
        return isinstance(public.curve, ec.SECP256R1 | ec.SECP384R1)
    return isinstance(public, rsa.RSAPublicKey) and _RSA_BITS[0] <= public.key_size <= _RSA_BITS[1]


def belong(certificate: x509.Certificate, key: Key) -> bool:
    """True where a certificate is for this key."""
    shape = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return certificate.public_key().public_bytes(*shape) == key.public_key().public_bytes(*shape)


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """True where this authority has signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def subject_of(certificate: x509.Certificate) -> Subject:
    """The names and addresses that a certificate is for."""
    try:
        known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return Subject(())
    addresses = known.get_values_for_type(x509.IPAddress)
    return Subject(
        tuple(known.get_values_for_type(x509.DNSName)),
        tuple(each for each in addresses if isinstance(each, IPv4Address | IPv6Address)),
    )


def authority_mistakes(chain: Sequence[x509.Certificate], key: Key | None, now: datetime) -> Iterator[str]:
    """Reasons why the first of these certificates cannot be the authority, without the file's name."""
    certificate = chain[0]
    try:
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        yield "its first certificate is no authority's (basicConstraints CA:TRUE)"
    try:
        if not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign:
            yield "its first certificate may not sign others (keyUsage keyCertSign)"
    except x509.ExtensionNotFound:
        pass
    if key is not None and not belong(certificate, key):
        yield "its first certificate is for another key than the authority's"
    if certificate.not_valid_after_utc <= now:
        yield f"it ended on {day(certificate)}"
    top = chain[-1]
    if not is_signed_by(top, top):
        yield "the authority above the last one is missing; accepted: all of them, up to one that signs itself"


def ends_within(certificate: x509.Certificate, now: datetime, days: int) -> bool:
    """True where a certificate's end is nearer than that, or over."""
    return certificate.not_valid_after_utc < now + timedelta(days=days)


def day(certificate: x509.Certificate) -> str:
    """The day on which a certificate ends."""
    return certificate.not_valid_after_utc.date().isoformat()


def now() -> datetime:
    """This moment, in whole seconds as certificates have them."""
    return datetime.now(UTC).replace(microsecond=0)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(end)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _public(key: Key) -> PublicKey:
    return key.public_key()


def _identifier(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    try:
        own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        public = authority.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey | rsa.RSAPublicKey)
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(public)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _use(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )
