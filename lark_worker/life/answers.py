"""What a hook is answered: a job as ClassAd lines, which HTCondor merges into the job ad."""

from __future__ import annotations

from typing import Final

from lark_worker.errors import CallerError, RefusedError
from lark_worker.records.records import Record
from lark_worker.settings import Settings

# The state of a job that did not start because the controller was away.
AWAY: Final = "away"
# The same where no DHCP server gave it an address.
NO_LEASE: Final = "no lease"
# The state of a job that the controller refused, and that may go back to Idle.
TURNED_AWAY: Final = "turned away"
# HookStatusCode of a prepare hook: 1 to 299 hold the job, 300 and above let it go back to Idle.
HOLD: Final = 20
IDLE: Final = 300


def lines(record: Record) -> str:
    """A job as ClassAd lines, which a prepare hook prints for HTCondor to merge into the job ad."""
    entries = {
        "LarkJobId": record.id,
        "LarkState": record.state,
        "LarkReason": " ".join(record.reason.split()).replace("\\", "/").replace('"', "'"),
        "LarkAddressType": record.address_type,
        "LarkNetworkType": record.network_type,
    }
    for interface in record.addresses:
        address = interface.partition("/")[0]
        entries[f"LarkInnerAddressIPv{6 if ':' in address else 4}"] = address
    if record.network_type != "none":
        entries["LarkInnerMacAddress"] = record.mac
        entries["LarkExternalInterface"] = record.port
    return "".join(f'{name} = "{value}"\n' for name, value in entries.items())


def said(record: Record, settings: Settings) -> str:
    """What was said of a job that did not start, again; a hook asks twice when an answer takes its time.

    Raises RefusedError or CallerError where that was the answer.
    """
    if record.state in ("refused", TURNED_AWAY):
        raise RefusedError(record.reason, record.state == TURNED_AWAY)
    if record.state not in (AWAY, NO_LEASE):
        raise CallerError("this job has ended")
    choice = settings.on_failure if record.state == AWAY else settings.dhcp_on_failure
    code = HOLD if choice == "hold" else IDLE
    return f'{lines(record)}HookStatusCode = {code}\nHookStatusMessage = "Lark: {record.reason}"\n'
