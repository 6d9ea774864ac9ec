"""Bandwidth for MPI applications: reserved for a pattern of messages over a communicator, as a whole or not at all."""

from typing import TYPE_CHECKING

from lark_mpi.communicator import Comm, Path, Reservation, Wish, key, release, reserve, reserved
from lark_mpi.errors import ReservationError
from lark_mpi.patterns import Pattern

__all__ = [
    "KEYVAL",
    "Comm",
    "Path",
    "Pattern",
    "Reservation",
    "ReservationError",
    "Wish",
    "release",
    "reserve",
    "reserved",
]

# The MPI attribute. A program may import this package before MPI_Init, when MPI makes no attribute.
KEYVAL: int

# A type checker would take any name for one of the module.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> int:
        if name == "KEYVAL":
            return key()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
