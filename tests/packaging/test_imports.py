"""Imports run one way, from room to room; a room is a folder or a module at the top of a package."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("lark_common", "lark_controller", "lark_mpi", "lark_worker")

# Each room of the controller with the rooms that it may import from, beside its own and lark_common.
_JOBS = {"jobs"}
_POLICIES = _JOBS | {"policies"}
_ACCOUNTING = _JOBS | {"accounting"}
_QOS = _POLICIES | _ACCOUNTING | {"qos"}
_FLOWS = _QOS | {"flows"}
_API = _FLOWS | {"api"}
_SWITCHES = _FLOWS | {"switches"}
_HANDS = _API | _SWITCHES
_CLUSTER = _API | {"store", "cluster"}
_SERVICES = _HANDS | {"settings", "store", "reconcile", "htcondor", "services"}
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "settings": set(),
    "jobs": set(),
    "policies": _JOBS,
    "accounting": _JOBS,
    "qos": _POLICIES | _ACCOUNTING,
    "flows": _QOS,
    "api": _FLOWS,
    "switches": _FLOWS,
    "rest": _API | {"settings"},
    "store": _API,
    "cluster": _CLUSTER,
    "htcondor": _API,
    "reconcile": _HANDS,
    "services": _SERVICES,
    "controller": _SERVICES,
    "cli": _SERVICES | {"cluster", "controller", "rest"},
}
# Each room of the worker service in the order of the arrow: it may import from those before it.
WORKER_ROOMS = (
    "__init__",
    "errors",
    "settings",
    "identity",
    "records",
    "network",
    "queues",
    "controller_link",
    "rules",
    "dhcp",
    "transfers",
    "usage",
    "life",
    "worker",
    "metrics",
    "hook_socket",
    "checks",
    "given_controllers",
    "join",
    "set_up",
    "cli",
)
# All that lark_mpi needs beside the standard library.
MPI_IMPORTS = {"mpi4py", *sys.stdlib_module_names}
PURE = {"jobs", "policies", "qos", "flows"}
INPUT_OUTPUT = {"socket", "time", "threading", "asyncio", "subprocess", "logging", "sqlalchemy", "flask"}
ONE_ROOM = {"os_ken": "switches", "sqlalchemy": "store", "flask": "rest"}

# Folders that are no room of the house: the tests see all of it.
_OUTSIDE = {"tests", "build"}
# The drawing of the house: so many rooms on so many floors, where a room stands above all that it imports.
MOST_ROOMS, MOST_FLOORS = 26, 11

MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def package_and_room(path: Path) -> tuple[str, str]:
    package, *rest = path.relative_to(ROOT).with_suffix("").parts
    return package, rest[0]


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and full name of everything that a module imports, wherever in it."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join((*package[: len(package) - node.level + 1], *filter(None, [base])))
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def test_the_arrow_has_no_way_back() -> None:
    for room, below in MAY_IMPORT.items():
        for other in below - {room}:
            assert room not in MAY_IMPORT[other], f"{room} and {other} may import each other"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    package, own = package_and_room(path)
    for line, name in imports(path):
        where = f"{path.relative_to(ROOT)}:{line}"
        parts = name.split(".")
        if parts[0] in ONE_ROOM:
            assert own == ONE_ROOM[parts[0]], f"{where}: only {ONE_ROOM[parts[0]]}/ may import {parts[0]}"
        # It is installed alone, where jobs run.
        assert package != "lark_mpi" or parts[0] in {"lark_mpi", *MPI_IMPORTS}, (
            f"{where}: lark_mpi must not import {name}"
        )
        if parts[0] not in PACKAGES or parts[0] == "lark_common" or len(parts) < 2:
            continue
        assert parts[0] == package, f"{where}: {package} must not import {parts[0]}"
        if package == "lark_controller" and parts[1] not in {own, "__version__"}:
            assert own in MAY_IMPORT, f"give lark_controller/{own} a place in {Path(__file__).name}"
            assert parts[1] in MAY_IMPORT[own], f"{where}: {own} must not import {parts[1]}"
        if package == "lark_worker" and parts[1] != own:
            assert WORKER_ROOMS.index(parts[1]) < WORKER_ROOMS.index(own), f"{where}: {own} must not import {parts[1]}"


def modules() -> dict[str, Path]:
    """Every module of the repository but the tests, by its full name."""
    found: dict[str, Path] = {}
    for folder in sorted(path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."):
        for path in sorted(folder.rglob("*.py")) if folder.name not in _OUTSIDE else ():
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imported() -> dict[str, set[str]]:
    """The modules of the repository that each imports; a package that is named to reach a module in it is none."""
    known = modules()

    def module_of(name: str) -> str:
        while name and name not in known:
            name = name.rpartition(".")[0]
        return name

    return {name: {other for _, each in imports(path) if (other := module_of(each))} for name, path in known.items()}


def room_of(name: str) -> str:
    """A folder or file at the top of the repository; of the controller, which is the house itself, one in it."""
    return ".".join(name.split(".")[: 2 if name.startswith("lark_controller.") else 1])


def floors(below: Mapping[str, set[str]]) -> dict[str, int]:
    """The floor of each room: above all that it imports, the first is 1."""
    found: dict[str, int] = {}
    for room in TopologicalSorter(below).static_order():
        found[room] = 1 + max((found[other] for other in below.get(room, ())), default=0)
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        floors({name: others - {name} for name, others in imported().items()})
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_house_has_few_rooms_and_floors_and_no_arrow_upwards() -> None:
    below: dict[str, set[str]] = {}
    for name, others in imported().items():
        # The controller's own __init__ has its version alone.
        rooms = {room_of(other) for other in others} - {room_of(name), "lark_controller"}
        below.setdefault(room_of(name), set()).update(rooms)
    del below["lark_controller"]
    floor = floors(below)  # no way leads back to a room: else this raises CycleError
    assert all(floor[other] < floor[room] for room, others in below.items() for other in others)
    # scripts/ is a room without an import.
    assert len(floor) + 1 <= MOST_ROOMS, sorted(floor)
    assert max(floor.values()) <= MOST_FLOORS, sorted(floor.items(), key=lambda each: each[1])


def test_floors_stand_above_all_that_they_import() -> None:
    assert floors({"cli": {"rest", "api"}, "rest": {"api"}, "api": set()}) == {"api": 1, "rest": 2, "cli": 3}
    with pytest.raises(CycleError):
        floors({"cli": {"rest"}, "rest": {"api"}, "api": {"cli"}})


def test_the_controller_has_few_rooms() -> None:
    rooms = {path.name for path in (ROOT / "lark_controller").iterdir() if path.name != "__pycache__"}
    assert len(rooms - {"__init__.py", "py.typed"}) <= 16


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_are_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_calculation_does_no_input_or_output(path: Path) -> None:
    """Modules of the pure rooms are functions of values: no sockets, no clock, no threads."""
    package, own = package_and_room(path)
    if package == "lark_controller" and own in PURE:
        for line, name in imports(path):
            assert name.split(".")[0] not in INPUT_OUTPUT, f"{path}:{line}"
