"""The periodic full check of a switch: foreign changes are set right. Called on the loop's thread.

To decode and compare a dump takes the loop some fifteen milliseconds for a thousand flows. So a comparison without a
difference is remembered by the fingerprint of what the switch should hold and the digest of what it held: as long as
both are the same, the next one would have the same outcome.
"""

from __future__ import annotations

import time
from typing import Final

from lark_common.log import WARNING, event
from lark_controller.flows.diff import drift
from lark_controller.flows.model import Program
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import Proof, SwitchState, dpid_text
from lark_controller.switches.openflow.dumps import FlowDigest

# Seconds after which a switch's flows are compared one by one again, even if nothing has changed.
PROOF_SECONDS: Final = 3600.0


async def check(loop: Reconciler, datapath: int) -> int:
    """Compare all that a switch holds with the desired state and send the difference; returns how many entries
    differed."""
    state = loop.switches.get(datapath)
    if state is None or state.link is None or not state.compared:
        return 0
    # Others have their turn after it in any case: a switch that does not answer is not checked first for ever.
    state.trusted = False
    link, wanted = state.link, loop.markers.fingerprint(datapath)
    if await _as_proven(loop, state, wanted):
        state.compared_at = time.monotonic()
        state.in_sync, state.reason = True, ""
        return 0
    if state.link is not link or not state.compared:
        return 0
    wanted, then = loop.markers.fingerprint(datapath), loop.desired_of(datapath).build(datapath)
    digest = FlowDigest()
    dump = await link.dump(foreign=False, digest=digest)
    if state.link is not link or not state.compared:
        return 0
    same = wanted is not None and loop.markers.fingerprint(datapath) == wanted
    now = then if same else loop.desired_of(datapath).build(datapath)
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
        return len(changes)
    state.in_sync, state.reason = True, ""
    if same and wanted is not None and dump.whole:
        state.proof = Proof(wanted, digest.held(dump.program.meters.values()), time.monotonic())
    return 0


async def _as_proven(loop: Reconciler, state: SwitchState, wanted: int | None) -> bool:
    """True where a switch holds what it held when it was compared last without a difference, and should hold the same.
    Raises SwitchError."""
    proof, link = state.proof, state.link
    if link is None or proof is None or wanted != proof.fingerprint or time.monotonic() > proof.at + PROOF_SECONDS:
        return False
    held = await link.held()
    if state.link is not link or not state.compared:
        return False
    return held == proof.held and loop.markers.fingerprint(state.datapath) == wanted
