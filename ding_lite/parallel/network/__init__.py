"""Where the nodes of a job are: addresses, network interfaces, keys and topologies."""
