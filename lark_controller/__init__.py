"""Lark: the network as a managed resource of an HTCondor pool."""

__version__ = "0.1.0"
