"""State: keyed, operator and broadcast, on exchangeable backends."""
