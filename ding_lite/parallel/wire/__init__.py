"""Encode values as frames and decode them: codec, envelope and messages."""
