"""`pyflink.common`."""

from headgate.pyflink.common.completable_future import CompletableFuture
from headgate.pyflink.common.configuration import Configuration
from headgate.pyflink.common.job_client import JobClient
from headgate.pyflink.common.job_execution_result import JobExecutionResult
from headgate.pyflink.common.job_id import JobID
from headgate.pyflink.common.job_status import JobStatus
from headgate.pyflink.common.restart_strategy import RestartStrategies, RestartStrategyConfiguration
from headgate.pyflink.common.time import Duration, Instant, Time
from headgate.pyflink.common.typeinfo import TypeInformation, Types
from headgate.pyflink.common.types import Row

__all__ = [
    "CompletableFuture",
    "Configuration",
    "Duration",
    "Instant",
    "JobClient",
    "JobExecutionResult",
    "JobID",
    "JobStatus",
    "RestartStrategies",
    "RestartStrategyConfiguration",
    "Row",
    "Time",
    "TypeInformation",
    "Types",
]
