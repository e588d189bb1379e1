"""Transports: what moves messages between nodes."""
