"""Buffers of experience: uniform, prioritized, rollouts and episodes."""
