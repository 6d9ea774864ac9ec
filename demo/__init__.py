"""``make demo``: the whole controller at work on three real switches, told as a story that checks itself."""
