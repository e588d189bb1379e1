"""Middleware for training on several nodes."""
