"""`pyflink.datastream.output_tag`."""

from headrace.api.functions import OutputTag as OutputTag
from headrace.pyflink.common.typeinfo import RowTypeInfo as RowTypeInfo
from headrace.pyflink.common.typeinfo import TypeInformation as TypeInformation
from headrace.pyflink.common.typeinfo import Types as Types

__all__ = ["OutputTag"]
