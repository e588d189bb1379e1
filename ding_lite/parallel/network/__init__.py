"""Addresses, network interfaces, keys and topologies of jobs."""
