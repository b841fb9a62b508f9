"""What runs in the driver's process: the job's shell, its checkpoints, its Spark session."""
