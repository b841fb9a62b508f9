"""`pyflink.datastream.time_domain`."""

from headgate.state.timers import TimeDomain as TimeDomain
