"""What jobs use of the network: raw counters in, usage out. Nothing here asks a switch, a clock or a database."""
