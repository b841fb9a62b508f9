"""`pyflink.common.execution_config`."""

from headrace.api.execution_config import ExecutionConfig as ExecutionConfig
