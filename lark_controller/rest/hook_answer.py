"""A job's answer as ClassAd lines, which a prepare hook prints for HTCondor to merge into the job ad."""

from __future__ import annotations

import classad2

from lark_controller.api.jobs import Confirmation


def lines(confirmation: Confirmation) -> str:
    """``Name = value`` lines in old ClassAd syntax: what the job is called, where it is in its life, its addresses."""
    job = confirmation.job
    entries = {
        "LarkJobId": _quote(job.id),
        "LarkState": _quote(job.state),
        "LarkReason": _quote(job.reason),
        "LarkAddressType": _quote(job.address_type),
        "LarkNetworkType": _quote(job.network_type),
    }
    for address, block in job.blocks:
        entries[f"LarkInnerAddressIPv{address.version}"] = _quote(str(address))
        if block is not None:
            entries[f"LarkAddressBlockIPv{address.version}"] = _quote(str(block))
    entries["LarkLeaseUntil"] = str(int(job.lease_until))
    entries["LarkConfirmed"] = _quote(",".join(confirmation.confirmed))
    entries["LarkWaiting"] = _quote(",".join(waiting.datapath for waiting in confirmation.waiting))
    return "".join(f"{name} = {value}\n" for name, value in entries.items())


def _quote(text: str) -> str:
    """A ClassAd string on one line: old syntax has no escape for a line break."""
    return str(classad2.quote(" ".join(text.split())))
