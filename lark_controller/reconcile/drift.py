"""The periodic full check of a switch: foreign changes are set right. Called on the loop's thread."""

from __future__ import annotations

import time

from lark_common.log import WARNING, event
from lark_controller.flows.diff import drift
from lark_controller.flows.model import Program
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import dpid_text


async def check(loop: Reconciler, datapath: int) -> int:
    """Compare a switch's dump with the desired state and send the difference; returns how many entries differed."""
    state = loop.switches.get(datapath)
    if state is None or state.link is None or not state.compared:
        return 0
    # Others have their turn after it in any case: a switch that does not answer is not checked first for ever.
    state.trusted = False
    link, then = state.link, loop.desired_of(datapath).build(datapath)
    dump = await link.dump(foreign=False)
    if state.link is not link or not state.compared:
        return 0
    now = loop.desired_of(datapath).build(datapath)
    if not dump.whole:
        # A flow that is missing in one part may be in the others.
        then, now = (
            Program({k: v for k, v in p.flows.items() if k in dump.program.flows}, p.meters) for p in (then, now)
        )
    changes = drift(then, now, dump.program)
    state.compared_at = time.monotonic()
    if changes:
        state.drift += len(changes)
        event("switch drifted", level=WARNING, datapath=dpid_text(datapath), changes=len(changes))
        loop.send_to(datapath, changes, None)
    else:
        state.in_sync, state.reason = True, ""
    return len(changes)
