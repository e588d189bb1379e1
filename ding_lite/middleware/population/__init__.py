"""Middleware that trains, evaluates and evolves a population."""
