"""Checkpoints of trees of tensors, arrays and plain values."""
