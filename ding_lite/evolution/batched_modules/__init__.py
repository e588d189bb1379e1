"""Modules in batched policies: one `vmap` for all modules of one kind."""
