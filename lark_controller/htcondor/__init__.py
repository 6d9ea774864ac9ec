"""What the pool itself says: the startds' ads in the collector, and what they mean for the directory."""
