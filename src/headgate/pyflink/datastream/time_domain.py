"""`pyflink.datastream.time_domain`."""

from headgate.state.timers import TimeDomain

__all__ = ["TimeDomain"]
