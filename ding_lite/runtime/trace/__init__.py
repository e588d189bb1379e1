"""Time lines and diagrams of a pipeline."""
