"""The pool's own view of running jobs: the startds' ads in the collector, and what they mean for the directory."""
