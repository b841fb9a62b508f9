"""The long acceptance lines, one module for each part of the system."""
