"""`pyflink.common.restart_strategy`."""

from headgate.job.restart import RestartStrategies, RestartStrategyConfiguration

__all__ = ["RestartStrategies", "RestartStrategyConfiguration"]
