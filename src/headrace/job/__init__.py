"""The life of a job, decided without I/O: attempts, restarts, rescaling, stopping, cancelling."""
