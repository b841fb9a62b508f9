"""`pyflink.common.job_execution_result`."""

from headgate.environment import JobExecutionResult as JobExecutionResult
