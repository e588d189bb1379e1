"""Files and memory: what is read is not trusted, and what is taken is checked first."""
