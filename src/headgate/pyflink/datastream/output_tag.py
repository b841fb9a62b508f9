"""`pyflink.datastream.output_tag`."""

from headgate.api.functions import OutputTag as OutputTag
