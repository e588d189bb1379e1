"""What a node tells of itself: metrics, the trace of its messages, and the jobs that run here."""
