"""Routing over hubs: a node of a tree relays what is not for it alone."""
