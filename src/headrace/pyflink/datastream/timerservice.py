"""`pyflink.datastream.timerservice`."""

from headrace.api.functions import TimerService as TimerService
