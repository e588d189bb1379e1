"""Transports, which move messages between nodes."""
