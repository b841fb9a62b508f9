"""Records: their types, batches, key groups, and the frames they travel in."""
