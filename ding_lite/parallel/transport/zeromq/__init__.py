"""ZeroMQ as a transport, with CURVE encryption and bounds on what is read ahead."""
