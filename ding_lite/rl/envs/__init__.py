"""Environments: making them, stepping many of them, and two built-in tasks."""
