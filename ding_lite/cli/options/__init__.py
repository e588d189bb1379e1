"""The options of the commands, and the checks of their values."""
