"""Operators: what runs inside a subtask, whole batches at a time."""
