"""Flows: the declared tables, what they hold, and how what is desired differs from what is installed. All pure."""
