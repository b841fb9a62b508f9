"""`pyflink.datastream.timerservice`."""

from headgate.api.functions import TimerService

__all__ = ["TimerService"]
