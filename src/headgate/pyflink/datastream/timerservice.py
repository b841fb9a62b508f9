"""`pyflink.datastream.timerservice`."""

from headgate.functions import TimerService

__all__ = ["TimerService"]
