"""What subtasks and driver say to each other, as plain data and pure state machines."""
