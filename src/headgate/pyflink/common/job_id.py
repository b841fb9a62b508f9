"""`pyflink.common.job_id`."""

from headgate.ids import JobId

__all__ = ["JobID"]

JobID = JobId
