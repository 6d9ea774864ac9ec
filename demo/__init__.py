"""``make demo``: the whole controller at work on three real switches, as a story that checks itself."""
