"""The commands, their arguments, and the parsers of the command line."""
