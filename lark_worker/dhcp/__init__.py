"""A DHCP client for jobs (RFC 2131): messages, leases, the client's states, and the sockets in jobs' namespaces."""
