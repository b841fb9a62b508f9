"""`pyflink.common.configuration`."""

from headgate.config import Configuration

__all__ = ["Configuration"]
