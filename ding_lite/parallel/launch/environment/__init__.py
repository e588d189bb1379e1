"""Launchers: what each of them tells a process that it has started, one module a launcher."""
