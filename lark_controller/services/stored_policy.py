"""Reads a policy out of the store, where it may be one that was accepted before such texts were refused."""

from __future__ import annotations

from lark_common.log import WARNING, event
from lark_controller.api.policy import PolicyVersion
from lark_controller.policies.file import load
from lark_controller.policies.model import Policy
from lark_controller.policies.yaml_nodes import unseen


def load_stored(version: PolicyVersion) -> Policy:
    """A stored version as it was accepted once; a character in it that would be refused now is a warning in the log,
    since a controller that does not start would be worse. Raises PolicyError."""
    policy = load(version.text, stored=True)
    hidden = unseen(version.text)
    if hidden is not None:
        event(
            "the policy in force has a character that is refused in a new one",
            level=WARNING,
            version=version.version,
            line=hidden.line,
            problem=hidden.problem,
            hint="lark policy put, without it",
        )
    return policy
