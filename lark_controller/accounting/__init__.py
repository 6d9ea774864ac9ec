"""The network use of jobs: raw counters in, usage out. Pure: no switch, clock or database."""
