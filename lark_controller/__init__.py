"""Lark: the network as a managed resource of an HTCondor pool."""

__version__ = "0.2.0"
