"""What several nodes do together: the world of a job and groups of its nodes."""

from ding_lite.parallel.group import Group, World

__all__ = ["Group", "World"]
