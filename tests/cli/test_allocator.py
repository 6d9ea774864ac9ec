"""The allocator's settings, by what the C library says of itself in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from lark_controller.cli.allocator import ARENAS

# Threads that all hold a block of the allocator's at the same moment; malloc_stats(3) names each arena.
_THREADS = """
import ctypes, threading
from lark_controller.cli.allocator import bound_arenas
{settings}
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier({threads})

def hold():
    together.wait()
    for _ in range(1000):
        libc.malloc(5000)
    together.wait()

started = [threading.Thread(target=hold) for _ in range({threads})]
for each in started:
    each.start()
for each in started:
    each.join()
libc.malloc_stats()
"""

# Blocks that are written, of which all but the last are freed: the memory that is given back then.
_FREED = """
import ctypes
from lark_controller.cli.allocator import bound_arenas, give_back
from lark_controller.cli.garbage import taken
bound_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
blocks = [libc.malloc(64_000) for _ in range({blocks})]
for block in blocks:
    ctypes.memset(block, 1, 64_000)
for block in blocks[:-1]:
    libc.free(block)
before = taken()
give_back()
print(before - taken())
"""


def arenas(settings: str) -> int:
    """The arenas of a process with sixteen threads that take memory."""
    code = _THREADS.format(settings=settings, threads=16)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stderr.count("Arena ")


def test_all_threads_share_few_arenas() -> None:
    assert arenas("") > ARENAS
    assert arenas("bound_arenas()") == ARENAS


def test_memory_between_blocks_in_use_is_given_back() -> None:
    code = _FREED.format(blocks=1000)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 900 * 64_000
