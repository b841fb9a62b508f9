"""`pyflink.datastream.time_characteristic` of Flink 1.x."""

from enum import Enum

__all__ = ["TimeCharacteristic"]


class TimeCharacteristic(Enum):
    """The time characteristic of programs before Flink 1.12; windows and timers now name their time themselves."""

    ProcessingTime = 0
    IngestionTime = 1
    EventTime = 2
