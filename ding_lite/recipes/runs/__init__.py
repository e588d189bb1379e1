"""One run of a training program: its directory, its metrics, its verdict, and its policy."""
