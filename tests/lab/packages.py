"""Debian's packages that the lab with the kernel's datapath has for its tests, beside the lab's own."""

from __future__ import annotations

from typing import Final

# Both MPIs, and what programs in Python and C need to be built and run with them (test_mpi.py).
MPI: Final = ("gcc", "libc6-dev", "libmpich-dev", "libopenmpi-dev", "make", "mpich", "openmpi-bin", "python3-mpi4py")
