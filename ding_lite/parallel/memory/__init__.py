"""Large arrays between processes of one machine: segments of shared memory and what uses them."""
