"""Signals that come at the worst moment: no program waits for ever."""

from __future__ import annotations

import subprocess
import sys

# Sends itself the signal at every line that its main thread carries out while it waits.
PROGRAM = """
import signal, sys
from lark_common.signals import Signals

signals, sent = Signals(), 0
signals.catch(signal.SIGTERM, signal.SIGHUP)

def interrupt(frame, event, _argument):
    global sent
    if event == "line" and sent < 10 and frame.f_code.co_name == "wait":
        sent += 1
        signal.raise_signal(signal.SIGTERM)
    return interrupt

sys.settrace(interrupt)
assert signals.wait() == signal.SIGTERM
sys.settrace(None)
signal.raise_signal(signal.SIGHUP)
while signals.wait() != signal.SIGHUP:
    pass
"""


def test_a_signal_that_comes_as_its_program_begins_to_wait_is_taken() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)


def test_signals_are_taken_in_their_order() -> None:
    program = (
        "import signal\nfrom lark_common.signals import Signals\n"
        "signals = Signals()\nsignals.catch(signal.SIGHUP, signal.SIGTERM)\n"
        "for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM): signal.raise_signal(number)\n"
        "signals.send(-1)\n"
        "assert [signals.wait() for _ in range(3)] == [signal.SIGHUP, signal.SIGHUP, signal.SIGTERM]\n"
        "assert signals.wait() == -1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# The main thread's sleep is not interrupted, as where a signal comes between its last look for signals and the sleep:
# here the kernel gives the signal to another thread.
ELSEWHERE = """
import faulthandler, os, signal, threading, time
from lark_common.signals import Signals

signals = Signals()
signals.catch(signal.SIGTERM)
faulthandler.dump_traceback_later(50, exit=True)

def send():
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=send, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
assert signals.wait() == signal.SIGTERM
"""


def test_a_signal_is_taken_also_where_it_does_not_interrupt_the_main_thread() -> None:
    subprocess.run([sys.executable, "-c", ELSEWHERE], check=True, timeout=60)
