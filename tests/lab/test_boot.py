"""The lab's own start."""

from __future__ import annotations

import os
import subprocess
import sys

from lab.boot import Lab

# The lab's end of the channel has the number 9.
PROGRAM = """
import os, socket
from lab.boot import Lab
from lab.settings import from_environment

made = socket.socketpair

def numbered():
    ours, theirs = made()
    os.dup2(theirs.fileno(), 9)
    theirs.close()
    return ours, socket.socket(fileno=9)

socket.socketpair = numbered
lab = Lab.start(from_environment())
print(lab.run(["hostname"]).stdout, end="")
lab.stop(keep=False)
"""


def test_the_channel_may_have_any_number(lab: Lab) -> None:
    # A lab of the same kind runs, so its root file system is there.
    environment = os.environ | {"LAB_KIND": lab.choice.kind}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, text=True, capture_output=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "lab\n"), done.stderr
