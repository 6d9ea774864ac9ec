"""Counters that instances which stand by read, and the steps of accounts that they calculate from them. Pure."""
