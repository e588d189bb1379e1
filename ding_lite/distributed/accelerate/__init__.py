"""Collective operations, and a replay, of processes that Hugging Face Accelerate connects."""
