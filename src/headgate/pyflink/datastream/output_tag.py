"""`pyflink.datastream.output_tag`."""

from headgate.api.functions import OutputTag as OutputTag
from headgate.pyflink.common.typeinfo import RowTypeInfo as RowTypeInfo
from headgate.pyflink.common.typeinfo import TypeInformation as TypeInformation
from headgate.pyflink.common.typeinfo import Types as Types

__all__ = ["OutputTag"]
