"""`ding-lite doctor`: check that this machine meets the requirements of ding_lite."""
