"""The pure core of checkpoints: plain data and state machines without clock, thread, file or network."""
