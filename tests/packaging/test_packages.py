"""The packages: what is laid out for each role is whole, names no place of an installation by hand, and is listed."""

from __future__ import annotations

import ast
import os
import re
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.packaging.conftest import PYTHON, ROLES, ROOT

PACKAGING = ROOT / "packaging"
SPEC = (PACKAGING / "lark.spec").read_text()
# Programs that are not ours: of packages that ours depend on, or of every system.
OF_THE_SYSTEM: Final = {
    "/bin/cat",
    "/bin/kill",
    "/bin/sh",
    "/usr/bin/sudo",
    "/usr/bin/python3",
    f"/usr/bin/python{PYTHON}",
}


def placed(tree: Path) -> dict[str, Path]:
    """Files and links of a tree, by the path that they will have."""
    return {f"/{path.relative_to(tree)}": path for path in tree.rglob("*") if path.is_symlink() or path.is_file()}


def texts(tree: Path) -> dict[str, str]:
    return {name: path.read_text() for name, path in placed(tree).items() if not path.is_symlink()}


def leads_to(tree: Path, name: str) -> str:
    """The end of a path over the tree's own links."""
    path = tree / name.removeprefix("/")
    while path.is_symlink():
        target = path.readlink()
        path = tree / str(target).removeprefix("/") if target.is_absolute() else path.parent / target
        path = Path(os.path.normpath(path))
    return f"/{path.relative_to(tree)}"


@pytest.mark.parametrize("role", ROLES)
def test_no_file_names_a_place_of_an_installation_by_hand(role: str, trees: dict[str, Path]) -> None:
    for name, text in texts(trees[role]).items():
        for other in ("/usr/local", "/opt/", str(ROOT), "fake_switch", "tests/"):
            assert other not in text, name


@pytest.mark.parametrize("role", ROLES)
def test_every_link_leads_to_a_file(role: str, trees: dict[str, Path]) -> None:
    for name in placed(trees[role]):
        end = leads_to(trees[role], name)
        assert end in placed(trees[role]) or end in OF_THE_SYSTEM, name


@pytest.mark.parametrize("role", ROLES)
def test_every_program_that_is_named_is_there_and_can_be_started(role: str, trees: dict[str, Path]) -> None:
    tree = trees[role]
    named: dict[str, str] = {}
    for name, text in texts(tree).items():
        lines = [line for line in text.splitlines() if not line.startswith("# ")]
        if name.startswith(("/usr/lib/systemd", "/usr/share", "/usr/libexec", "/usr/bin", "/usr/sbin")):
            found = re.findall(r"(?<![\w$}./])/(?:usr/)?(?:bin|sbin|libexec)/[\w./-]+", "\n".join(lines))
            named |= dict.fromkeys(found, name)
    assert named or role == "access-point"
    for program, where in named.items():
        end = leads_to(tree, program)
        if end not in OF_THE_SYSTEM:
            assert end in placed(tree), f"{where}: {program}"
            assert (tree / end.removeprefix("/")).stat().st_mode & 0o111 == 0o111, program


# By lark-transfer-queue, when it runs.
WRITTEN: Final = "/etc/condor/config.d/52-lark-transfer-queue.conf"


@pytest.mark.parametrize("role", ROLES)
def test_files_that_rules_and_configuration_name_are_there(role: str, trees: dict[str, Path]) -> None:
    """Sources of copies in tmpfiles.d, and HTCondor's files in /etc/condor."""
    for name, text in texts(trees[role]).items():
        for path in re.findall(r"/usr/share/lark-[\w./-]+\w|/etc/condor/[\w./-]+\w", text):
            there = trees[role] / path.removeprefix("/")
            if path == WRITTEN:
                continue
            assert there.is_symlink() or there.exists(), f"{name}: {path}"


@pytest.mark.parametrize(("role", "package", "project"), [
    ("controller", "lark-controller", "pyproject.toml"),
    ("worker", "lark-worker", "lark_worker/pyproject.toml"),
])  # fmt: skip
def test_programs_start_what_the_wheels_start(role: str, package: str, project: str, trees: dict[str, Path]) -> None:
    ((name, target),) = tomllib.loads((ROOT / project).read_text())["project"]["scripts"].items()
    module, _, function = target.partition(":")
    assert leads_to(trees[role], f"/usr/bin/{name}") == f"/usr/lib/{package}/bin/{name}"
    script = (trees[role] / f"usr/lib/{package}/bin/{name}").read_text()
    assert script.startswith(f"#!/usr/lib/{package}/bin/python -I\n")
    assert f"from {module} import {function}\n" in script


def test_sudos_rule_is_read_by_root_alone_and_sudo_takes_it(trees: dict[str, Path]) -> None:
    rule = trees["worker"] / "usr/share/lark-worker/sudoers"
    assert stat.S_IMODE(rule.stat().st_mode) == 0o440
    assert leads_to(trees["worker"], "/etc/sudoers.d/lark") == "/usr/share/lark-worker/sudoers"
    visudo = shutil.which("visudo")
    if visudo:
        subprocess.run([visudo, "-cqf", rule], check=True)


def test_nothing_in_etc_stays_when_a_package_is_removed(trees: dict[str, Path]) -> None:
    """dpkg keeps files in /etc until a package is purged, and a removed worker would go on calling hooks."""
    for role in ROLES:
        assert [
            name
            for name, path in placed(trees[role]).items()
            if name.startswith("/etc/") and path.is_file() and not path.is_symlink()
        ] == []


def listed(package: str) -> list[str]:
    (files,) = re.findall(rf"(?ms)^%files -n {package}\n(.*?)\n\n", SPEC)
    # A manual page may be compressed.
    return [line.removesuffix("*") for line in files.splitlines() if line.startswith("/")]


@pytest.mark.parametrize("role", ROLES)
def test_the_rpm_lists_what_is_laid_out(role: str, trees: dict[str, Path]) -> None:
    names = listed(f"lark-{role}")
    covers = {
        each: [name for name in placed(trees[role]) if name == each or name.startswith(f"{each}/")] for each in names
    }
    assert all(covers.values()), covers
    assert sorted(name for covered in covers.values() for name in covered) == sorted(placed(trees[role]))


@pytest.mark.parametrize("role", ROLES)
def test_scripts_of_packages_name_units_and_directories_that_are_theirs(role: str, trees: dict[str, Path]) -> None:
    units = {path.name for path in trees[role].glob("usr/lib/systemd/system/*")}
    scripts = "".join(
        path.read_text()
        for path in (PACKAGING / "debian").glob(f"lark-{role}.*")
        if path.suffix != ".lintian-overrides"
    )
    rpm = "".join(re.findall(rf"(?ms)^%(?:post|preun|postun) -n lark-{role}\n.*?(?=^%|\Z)", SPEC))
    for text in (scripts, rpm):
        started = set(re.findall(r"[\w-]+\.service", text))
        assert started == units
        for rules in re.findall(r"(sysusers|tmpfiles)(?: --create)? (lark-[\w-]+\.conf)", text):
            assert (trees[role] / f"usr/lib/{rules[0]}.d" / rules[1]).exists()


@pytest.mark.parametrize(("role", "page", "subcommands"), [
    ("controller", "man1/lark.1", ("lark plan", "lark completion", "LARK_TOKEN_FILE", "EXIT STATUS")),
    ("worker", "man8/lark-worker.8", ("lark-worker check", "lark-worker setup", "lark-worker bridge", "EXIT STATUS")),
    ("worker", "man8/lark-base-flows.8", ("--check", "--watch SECONDS", "BRIDGE UPLINK", "EXIT STATUS")),
])  # fmt: skip
def test_manual_pages_have_every_command_and_are_sound(
    role: str, page: str, subcommands: tuple[str, ...], trees: dict[str, Path]
) -> None:
    path = trees[role] / "usr/share/man" / page
    done = subprocess.run(
        ["man", "--warnings", path], capture_output=True, text=True, env={**os.environ, "MANWIDTH": "120"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    for words in subcommands:
        assert words in done.stdout


# Programs that the worker's package starts, with who has them: Debian's package and Enterprise Linux's.
PROVIDERS: Final = {
    "bridge": ("iproute2", "iproute"),
    "ip": ("iproute2", "iproute"),
    "nft": ("nftables", "nftables"),
    "openssl": ("openssl", "openssl"),
    "ovs-vsctl": ("openvswitch-switch", "openvswitch"),
    "ping": ("iputils-ping", "iputils"),
    "sudo": ("sudo", "sudo"),
    "systemctl": ("systemd", "systemd"),
    "tc": ("iproute2", "iproute-tc"),
    # Of every system.
    "env": None,
    "unshare": None,
}


def started(folder: Path) -> set[str]:
    """The programs that a package's modules start."""
    calls = [
        call
        for path in folder.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in ("run", "Popen")
    ]
    lists = [each.elts[0] for call in calls for each in call.args if isinstance(each, ast.List) and each.elts]
    return {first.value for first in lists if isinstance(first, ast.Constant) and isinstance(first.value, str)}


def test_the_workers_package_depends_on_every_program_that_it_starts() -> None:
    assert started(ROOT / "lark_worker") == set(PROVIDERS)
    (debian,) = re.findall(
        r"(?ms)^Package: lark-worker\n.*?^Depends: (.*?)^\S", (PACKAGING / "debian/control").read_text()
    )
    (rpm,) = re.findall(r"(?ms)^%package -n lark-worker\n(.*?)^%", SPEC)
    for program, packages in PROVIDERS.items():
        for named, text in zip(packages or (), (debian, rpm), strict=False):
            assert re.search(rf"(?<![\w-]){named}(?![\w-])", text), f"{program}: {named}"


def test_scripts_are_sound() -> None:
    scripts = [
        *PACKAGING.glob("*.sh"),
        *(ROOT / "scripts" / f"{name}.sh" for name in ("debian_packages", "packages", "setup")),
        ROOT / "scripts" / "manpages.sh",
        *(PACKAGING / "debian").glob("*.p*"),
    ]
    assert len(scripts) > 8
    done = subprocess.run(["shellcheck", "-x", *scripts], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
