"""Bases for algorithms of users, networks and a loss in plain PyTorch, and R2D2 on them."""
