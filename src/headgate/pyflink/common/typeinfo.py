"""`pyflink.common.typeinfo`."""

from headgate.records.types import TypeInformation, Types

__all__ = ["TypeInformation", "Types"]
