"""`ding-lite doctor`: check that this machine has what ding_lite needs."""
