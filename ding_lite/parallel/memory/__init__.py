"""Share large arrays between the processes of one machine: segments, pools and copies."""
