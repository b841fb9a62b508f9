"""What runs in a Python worker of Spark: one subtask and the shell around it."""
