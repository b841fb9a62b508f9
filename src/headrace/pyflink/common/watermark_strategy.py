"""`pyflink.common.watermark_strategy`."""

from headrace.api.watermarks import TimestampAssigner, WatermarkStrategy
from headrace.errors import InvalidArgument
from headrace.pyflink.common.time import Duration as Duration

__all__ = ["AssignerWithPeriodicWatermarksWrapper", "TimestampAssigner", "WatermarkStrategy"]


class AssignerWithPeriodicWatermarksWrapper:
    """A watermark assigner that is written in Java: refused."""

    def __init__(self, j_assigner_with_periodic_watermarks: object = None) -> None:
        raise InvalidArgument(
            "HR-8001",
            "AssignerWithPeriodicWatermarksWrapper is for assigners that are written in Java, and there is no Flink here: use "
            "WatermarkStrategy.for_generator(...)",
        )
