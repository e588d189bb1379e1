"""A transport over ZeroMQ, with CURVE encryption and bounds on what is read ahead."""
