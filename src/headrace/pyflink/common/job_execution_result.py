"""`pyflink.common.job_execution_result`."""

from headrace.environment import JobExecutionResult as JobExecutionResult
