"""The answers to a hook: a job of this worker as ClassAd lines, or the reason why it did not start."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface
from typing import Final

from lark_common import hook_answer
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
    addresses = [ip_interface(interface).ip for interface in record.addresses]
    job = hook_answer.JobAnswer(
        record.id, record.state, record.reason, record.address_type, record.network_type, addresses
    )
    if record.network_type == "none":
        return hook_answer.lines(job)
    external = hook_answer.external(map(ip_address, record.external), record.opened, record.external_name)
    more = {"LarkInnerMacAddress": record.mac, "LarkExternalInterface": record.port, **external}
    return hook_answer.lines(job, more)


def repeated(record: Record, settings: Settings) -> str:
    """The earlier answer about a job that did not start; a hook asks twice when an answer takes its time.

    Raises RefusedError or CallerError where that was the answer.
    """
    if record.state in ("refused", TURNED_AWAY):
        raise RefusedError(record.reason, record.state == TURNED_AWAY)
    if record.state not in (AWAY, NO_LEASE):
        raise CallerError("this job has ended")
    choice = settings.on_failure if record.state == AWAY else settings.dhcp_on_failure
    status: dict[str, str | int] = {
        "HookStatusCode": HOLD if choice == "hold" else IDLE,
        "HookStatusMessage": f"Lark: {record.reason}",
    }
    return lines(record) + hook_answer.attribute_lines(status)
