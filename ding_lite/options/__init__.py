"""The options of a run, from which calls, commands and training programs are derived."""
