"""The driver's process: the job's shell, its checkpoints, its Spark session."""
