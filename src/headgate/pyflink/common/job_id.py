"""`pyflink.common.job_id`."""

from headgate.ids import JobId as JobID

__all__ = ["JobID"]
