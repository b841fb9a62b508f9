"""`pyflink.common.job_status`."""

from headgate.job.status import JobStatus as JobStatus
