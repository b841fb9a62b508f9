"""`pyflink.common.typeinfo`."""

from headgate.types import TypeInformation, Types

__all__ = ["TypeInformation", "Types"]
