"""The control plane: messages between the driver and the workers, and the connections that carry them."""
