"""Middleware that trains, evaluates and breeds a population."""
