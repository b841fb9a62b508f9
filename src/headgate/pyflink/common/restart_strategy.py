"""`pyflink.common.restart_strategy`."""

from headgate.job.restart import RestartStrategies as RestartStrategies
from headgate.job.restart import RestartStrategyConfiguration as RestartStrategyConfiguration
