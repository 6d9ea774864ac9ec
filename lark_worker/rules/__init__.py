"""What the controller decided for bridge and nat jobs, put into the kernel's packet filter (nftables)."""
