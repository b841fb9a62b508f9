"""The command line: `headgate run`, and the commands that operate jobs and look into their state."""
