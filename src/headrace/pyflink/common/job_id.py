"""`pyflink.common.job_id`."""

from headrace.ids import JobId

__all__ = ["JobID"]

JobID = JobId
