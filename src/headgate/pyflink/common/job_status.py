"""`pyflink.common.job_status`."""

from headgate.driver.job import JobStatus as JobStatus
