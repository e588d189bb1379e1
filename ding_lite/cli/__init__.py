"""The command line: `ding-lite run`, `ding-lite env` and `ding-lite keygen`."""
