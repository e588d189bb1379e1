"""Values to frames and back: the codec, the envelope around every message, and the messages."""
