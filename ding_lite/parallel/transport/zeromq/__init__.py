"""A transport over ZeroMQ, with CURVE encryption and bounds on the bytes that are read ahead."""
