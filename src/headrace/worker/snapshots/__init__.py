"""The snapshots of a subtask on its worker: taken, written with local copies, and restored."""
