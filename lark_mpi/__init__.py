"""Bandwidth for MPI applications: reserved for a pattern of messages over a communicator, as a whole or not at all."""

from lark_mpi.communicator import KEYVAL, Comm, Path, Reservation, Wish, release, reserve, reserved
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
