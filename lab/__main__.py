"""The lab from the command line: ``python3 -m lab build|shell|run COMMAND…``. Needs root."""

from __future__ import annotations

import argparse
import os
import sys
import time

from lab import rootfs
from lab.boot import Lab
from lab.inside.topology import BY_NAME, OPERATOR_TOKEN, REST_PORT
from lab.run import LabError, MirrorError
from lab.settings import from_environment
from lab.terminal import Forward, shell

WELCOME = """\
The pool is up after {seconds:.0f} s. You are in the lab, beside its machines: {machines}.
  on central -u alice             a shell on a machine, as one of alice, bob, carol, mallory (root without -u)
  on central condor_status        a command on a machine
  python3 -m lab.inside.pool off worker1    cut a machine's power; with "on" for "off" it starts again
  lark jobs                       the controller, as its operator; also lark switches, lark explain A B
http://127.0.0.1:{port}/ leads to the controller, port {rest} of that machine. Its operator's token:
  {token}
Leave with "exit": everything is gone then.
"""


# Exit status where the mirror cannot be reached and the root file system is not there yet.
NO_MIRROR = 3


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="lab", description=__doc__)
    parser.add_argument("action", choices=("build", "shell", "run"))
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        help="for run: what to run in the lab, with the pool up; for build: Debian packages beside the lab's own",
    )
    parser.add_argument("--port", type=int, default=0, help="local port of the controller's page (default: a free one)")
    parser.add_argument("--keep", action="store_true", help="keep the run's directory, with every daemon's log")
    arguments = parser.parse_args()
    # All that follows the action is the command's, these as well.
    if arguments.command[:1] in (["-h"], ["--help"]):
        parser.print_help()
        return 0
    if arguments.action == "shell" and arguments.command:
        words = " ".join(arguments.command)
        parser.error(f"shell takes no command: {words}; accepted is: run {words}")
    try:
        settings = from_environment()
        if arguments.action == "build":
            for layer in rootfs.build(settings, arguments.command).layers:
                print(layer)
            return 0
        began = time.monotonic()
        lab = Lab.start(settings)
        keep = True
        try:
            lab.start_pool()
            forward = Forward(lab, BY_NAME["controller"].address, REST_PORT, arguments.port)
            if arguments.action == "shell":
                seconds = time.monotonic() - began
                machines = ", ".join(BY_NAME)
                token = lab.on("controller", "cat", OPERATOR_TOKEN).stdout.strip()
                print(
                    WELCOME.format(seconds=seconds, machines=machines, port=forward.port, rest=REST_PORT, token=token)
                )
                status = shell(lab, ["bash", "--login"])
            else:
                status = shell(lab, arguments.command)
            forward.close()
            keep = arguments.keep
            return status
        finally:
            lab.stop(keep=keep)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return NO_MIRROR if isinstance(error, MirrorError) else 1
    except KeyboardInterrupt:
        return 128 + 2


if __name__ == "__main__":
    # Open work, such as a connection, need not hold up the end.
    status = main()
    sys.stdout.flush()
    os._exit(status)
