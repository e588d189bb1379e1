"""`ding-lite report` and `ding-lite runs`: what runs have left, as a page and as a table."""
