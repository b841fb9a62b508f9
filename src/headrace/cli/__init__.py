"""The command line: `headrace run`, and the commands that operate jobs and look into their state."""
