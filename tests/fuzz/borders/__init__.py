"""One module for each border (see ``tests.fuzz``)."""
