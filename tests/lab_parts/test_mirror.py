from __future__ import annotations

from pathlib import Path

import pytest

from lab.mirror import Source, debian_archive, parse_deb822, parse_one_line, read_sources
from lab.run import LabError

DEB822 = """\
Types: deb deb-src
# a comment in the middle of a stanza
URIs: http://mirror.test/debian
Suites: bookworm
 bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.test/debian-security
Suites: bookworm-security
Components: main

Types: deb
URIs: http://off.test/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb-src
URIs: http://source.test/debian
Suites: bookworm
Components: main
"""


def test_deb822_gives_one_source_a_suite() -> None:
    sources = list(parse_deb822(DEB822))
    assert [(source.uri, source.suite) for source in sources] == [
        ("http://mirror.test/debian", "bookworm"),
        ("http://mirror.test/debian", "bookworm-updates"),
        ("http://mirror.test/debian-security", "bookworm-security"),
    ]
    assert sources[0].components == ("main", "contrib")
    assert sources[0].signed_by == "/usr/share/keyrings/debian-archive-keyring.gpg"


def test_a_key_written_into_the_stanza_is_no_file() -> None:
    text = (
        "Types: deb\nURIs: http://a.test/debian\nSuites: sid\nComponents: main\nSigned-By:\n -----BEGIN-----\n .\n x\n"
    )
    assert [source.signed_by for source in parse_deb822(text)] == [""]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deb http://a.test/debian sid main", Source("http://a.test/debian", "sid", ("main",))),
        (
            "deb [arch=amd64 signed-by=/k.gpg] http://a.test/debian sid main contrib # why",
            Source("http://a.test/debian", "sid", ("main", "contrib"), "/k.gpg"),
        ),
    ],
)
def test_one_line_format(line: str, expected: Source) -> None:
    assert list(parse_one_line(line)) == [expected]


@pytest.mark.parametrize(
    "line", ["# deb http://a.test/debian sid main", "deb-src http://a.test/debian sid main", "", "deb"]
)
def test_other_lines_name_no_source(line: str) -> None:
    assert list(parse_one_line(line)) == []


def test_both_formats_are_read(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text("deb http://first.test/debian sid main\n")
    (parts / "debian.sources").write_text(DEB822)
    (parts / "other.sources.disabled").write_text(DEB822)
    assert [source.uri for source in read_sources(tmp_path)][:2] == [
        "http://first.test/debian",
        "http://mirror.test/debian",
    ]


def test_the_debian_archive_is_told_from_other_archives() -> None:
    sources = [
        Source("https://packages.test/cloud-sdk", "bookworm", ("main",)),
        Source("http://mirror.test/debian-security", "bookworm-security", ("main",)),
        Source("http://mirror.test/debian", "bookworm", ("contrib",)),
        Source("http://mirror.test/debian/", "bookworm", ("main",)),
    ]
    assert debian_archive(sources) == sources[-1]


def test_without_a_debian_archive_the_setting_is_named() -> None:
    with pytest.raises(LabError, match="LAB_MIRROR"):
        debian_archive([Source("http://archive.test/ubuntu", "noble", ("main",))])
