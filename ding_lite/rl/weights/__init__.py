"""Flat weights, any module on them, and optimisers."""
