"""The controller's decisions for bridge and nat jobs, in the kernel's packet filter (nftables)."""
