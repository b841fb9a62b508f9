"""`pyflink.datastream.timerservice`."""

from headgate.api.functions import TimerService as TimerService
