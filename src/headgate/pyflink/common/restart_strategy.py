"""`pyflink.common.restart_strategy`."""

from headgate.restart import RestartStrategies, RestartStrategyConfiguration

__all__ = ["RestartStrategies", "RestartStrategyConfiguration"]
