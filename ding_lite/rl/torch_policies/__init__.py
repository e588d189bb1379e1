"""Bases for users' own algorithms, networks and a loss in plain PyTorch; and R2D2 on one."""
