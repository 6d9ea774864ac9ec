"""Real Open vSwitch and real hosts on one machine, for tests and the demonstration. Needs root and Linux."""
