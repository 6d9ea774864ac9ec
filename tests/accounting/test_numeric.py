"""The arrays in which readings are calculated."""

from __future__ import annotations

import subprocess
import sys

from lark_controller.accounting.numeric import np, sums_by

THREADS = """
import os
import lark_controller.accounting.ledger
print(len(os.listdir("/proc/self/task")))
"""


def test_no_thread_is_started_for_linear_algebra() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_columns_are_added_up_by_key() -> None:
    columns = np.array([[1, 2, 3, 4], [10, 20, 30, 40]])
    assert sums_by(["b", "a", "b", "c"], columns) == {"b": [4, 40], "a": [2, 20], "c": [4, 40]}
    assert sums_by(["a"] * 4, columns) == {"a": [10, 100]}
    assert sums_by([], columns[:, :0]) == {}
