"""The barriers of a subtask as pure state machines, run by the subtask's thread of a worker: one gate per delivery mode."""
