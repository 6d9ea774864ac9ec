"""The Debian mirror and the keyring that the machine's own apt sources name.

Reads both formats of sources.list(5): one line a source, and deb822 stanzas.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.run import LabError, MirrorError, run

APT = Path("/etc/apt")
APT_HELPER = "/usr/lib/apt/apt-helper"
FETCH_TIMEOUT = 120
DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@dataclass(frozen=True, slots=True)
class Source:
    """One apt source: an archive's address, a suite, and the keyring file that signs it (empty: apt's default)."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""


def parse_one_line(text: str) -> Iterator[Source]:
    """Sources of a ``.list`` file; lines of other types than ``deb`` are passed over."""
    for line in text.splitlines():
        match = re.fullmatch(r"\s*deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<rest>[^#]*)(?:#.*)?", line)
        fields = match["rest"].split() if match else []
        if not match or len(fields) < 2:
            continue
        signed = re.search(r"signed-by=(\S+)", match["options"] or "")
        yield Source(fields[0], fields[1], tuple(fields[2:]), signed[1] if signed else "")


def parse_deb822(text: str) -> Iterator[Source]:
    """Sources of a ``.sources`` file; stanzas that are disabled or of other types than ``deb`` are passed over."""
    without_comments = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", without_comments):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[key] = f"{fields.get(key, '')}\n{line.strip()}"
            elif ":" in line:
                name, value = line.split(":", 1)
                key = name.strip().lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        signed_by = fields.get("signed-by", "")
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                components = tuple(fields.get("components", "").split())
                yield Source(uri, suite, components, signed_by if signed_by.startswith("/") else "")


def read_sources(apt: Path = APT) -> list[Source]:
    """Every source of ``apt`` (normally ``/etc/apt``), in the order in which apt reads them."""
    found: list[Source] = []
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    for file in files:
        if file.suffix == ".list" and file.is_file():
            found.extend(parse_one_line(file.read_text()))
        elif file.suffix == ".sources" and file.is_file():
            found.extend(parse_deb822(file.read_text()))
    return found


def check_reachable(uri: str, suite: str) -> None:
    """Raise MirrorError, with apt's reason, where apt (its proxies and other settings) cannot fetch from an archive."""
    with tempfile.TemporaryDirectory() as directory:
        fetch = [APT_HELPER, "-o", "Acquire::Retries=2", "download-file", f"{uri.rstrip('/')}/dists/{suite}/InRelease"]
        try:
            run([*fetch, f"{directory}/InRelease"], timeout=FETCH_TIMEOUT)
        except LabError as error:
            reasons = re.findall(r"^E: (.*)$", str(error), flags=re.MULTILINE) or [str(error)]
            raise MirrorError(f"Debian's mirror {uri} cannot be reached: {reasons[0]}") from None


def debian_archive(sources: Iterable[Source]) -> Source:
    """The first source that is a Debian archive: component main, no security suite, path ending in ``debian``.

    Raises LabError if there is none.
    """
    for source in sources:
        is_debian = source.uri.rstrip("/").endswith("/debian") or "//snapshot.debian.org/archive/debian/" in source.uri
        if is_debian and "main" in source.components and "security" not in source.suite:
            return source
    raise LabError("apt's sources name no Debian archive: set LAB_MIRROR to a mirror of Debian, and LAB_KEYRING")
