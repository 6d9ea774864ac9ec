"""Several controllers on one database: which one is active, and who takes over from it."""
