"""What runs a job: subtasks, their shells on Spark and in one process, and the driver's side."""
