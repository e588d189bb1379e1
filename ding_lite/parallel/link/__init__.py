"""Links of a node to its peers: handshake, session, loss and good-bye."""
