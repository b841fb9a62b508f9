"""`pyflink.common.io`."""

__all__ = ["InputFormat"]


class InputFormat:
    """Base class of formats for `env.create_input(...)`."""
