"""The data that must survive a restart: runs with their ads, leases and addresses, the audit trail, policy versions."""

from lark_controller.store.queries import Ending, LiveAds
from lark_controller.store.run_updates import Pruned
from lark_controller.store.runs import LEASE_EXPIRED, SUPERSEDED, StoredRun
from lark_controller.store.store import Store

__all__ = ["LEASE_EXPIRED", "SUPERSEDED", "Ending", "LiveAds", "Pruned", "StoredRun", "Store"]
