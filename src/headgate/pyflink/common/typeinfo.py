"""`pyflink.common.typeinfo`."""

from headgate.records.types import TypeInformation as TypeInformation
from headgate.records.types import Types as Types
