"""The worker's process: one subtask, and the shell that runs it in a Python worker of Spark."""
