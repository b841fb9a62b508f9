"""`pyflink.datastream.time_domain`."""

from headrace.state.timers import TimeDomain as TimeDomain
