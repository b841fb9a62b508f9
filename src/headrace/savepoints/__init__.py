"""State as tables, for users: checkpoints and savepoints read and written."""
