"""`pyflink.datastream.output_tag`."""

from headgate.functions import OutputTag

__all__ = ["OutputTag"]
