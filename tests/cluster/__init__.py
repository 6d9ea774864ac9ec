"""Tests of several controllers on one database."""
