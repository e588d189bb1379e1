"""`ding-lite report` and `ding-lite runs`: runs as a page and as a table."""
