"""`pyflink.common.job_status`."""

from headrace.job.status import JobStatus as JobStatus
