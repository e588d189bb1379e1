"""Middleware that reports a run: log lines, curve, progress and TensorBoard."""
