"""What the driver and the workers say to each other, and the channel between them."""
