"""The inside of the lab: the first process, the machines of the pool, and what is started on them."""
