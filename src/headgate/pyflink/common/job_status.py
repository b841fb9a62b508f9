"""`pyflink.common.job_status`."""

from headgate.runtime.job import JobStatus

__all__ = ["JobStatus"]
