"""The options of the commands, and how what is typed is checked."""
