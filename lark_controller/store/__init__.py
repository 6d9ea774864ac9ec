"""The data that must survive a restart: runs with their ads, leases and addresses, the audit trail, policy versions."""

from lark_controller.store.queries import Ending, LiveAds
from lark_controller.store.run_updates import Pruned
from lark_controller.store.runs import LEASE_EXPIRED, SUPERSEDED, Post, StoredRun
from lark_controller.store.store import Store
from lark_controller.store.subject import BATCH
from lark_controller.store.together import Finish, Outcome

__all__ = [
    "BATCH", "LEASE_EXPIRED", "SUPERSEDED", "Ending", "Finish", "LiveAds", "Outcome", "Post", "Pruned", "Store",
    "StoredRun",
]  # fmt: skip
