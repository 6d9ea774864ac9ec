"""NumPy, imported so that it starts no threads, and the arrays that readings are calculated in.

The linear algebra that comes with it would start a thread for each processor, with memory of its own. None of it is
used here. Only the controller's process imports this: of a command's start it would be the larger part.
"""

from __future__ import annotations

import os

# It is looked at when NumPy is imported, and at no other time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Bools", "Counts", "Floats", "Numbers", "any_of", "np", "npt", "sums_by"]

# Counters and sums, which are not negative; differences and what is calculated of them; times and rates.
Counts: TypeAlias = npt.NDArray[np.uint64]
Numbers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

K = TypeVar("K", bound=Hashable)


def any_of(rows: npt.NDArray[Any]) -> Bools:
    """True for the columns in which any row has something."""
    found: Bools = np.logical_or.reduce(rows, axis=0)
    return found


def sums_by(keys: Sequence[K], columns: Numbers) -> dict[K, list[int]]:
    """The sums of the columns of each key, row by row; each column's key is at its place."""
    different = dict.fromkeys(keys)
    if len(different) <= 1:
        return {key: np.add.reduce(columns, axis=1).tolist() for key in different}
    places = dict(zip(different, range(len(different)), strict=True))
    codes = np.fromiter(map(places.__getitem__, keys), np.intp, len(keys))
    order = codes.argsort(kind="stable")
    first = codes[order].searchsorted(np.arange(len(places)))
    return dict(zip(places, np.add.reduceat(columns[:, order], first, axis=1).T.tolist(), strict=True))
