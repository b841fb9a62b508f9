"""`pyflink.common.execution_config`."""

from headgate.api.execution_config import ExecutionConfig as ExecutionConfig
