"""`pyflink.common.restart_strategy`."""

from __future__ import annotations

from datetime import timedelta

from headrace import config
from headrace.config import Option
from headrace.job.restart import RestartStrategies as _RestartStrategies
from headrace.job.restart import RestartStrategyConfiguration

__all__ = ["RestartStrategies", "RestartStrategyConfiguration"]


def _milliseconds(strategy: RestartStrategyConfiguration, option: Option[int]) -> timedelta:
    value = strategy.options[option.key]
    return value if isinstance(value, timedelta) else timedelta(milliseconds=int(str(value)))


class RestartStrategies(_RestartStrategies):
    """Headrace's strategies, and PyFlink's classes of their settings."""

    class NoRestartStrategyConfiguration(RestartStrategyConfiguration):
        """The first failure ends the job."""

        def __init__(self) -> None:
            super().__init__(_RestartStrategies.no_restart().options)

    class FixedDelayRestartStrategyConfiguration(RestartStrategyConfiguration):
        """Restarts a number of times with the same pause before each."""

        def __init__(self, restart_attempts: int, delay_between_attempts_interval: int | timedelta) -> None:
            made = _RestartStrategies.fixed_delay_restart(restart_attempts, delay_between_attempts_interval)
            super().__init__(made.options)

        def get_restart_attempts(self) -> int:
            return int(str(self.options[config.FIXED_DELAY_ATTEMPTS.key]))

        def get_delay_between_attempts_interval(self) -> timedelta:
            return _milliseconds(self, config.FIXED_DELAY_DELAY)

    class FailureRateRestartStrategyConfiguration(RestartStrategyConfiguration):
        """Restarts as long as no more than a number of failures fall into the interval."""

        def __init__(
            self,
            max_failure_rate: int,
            failure_interval: int | timedelta,
            delay_between_attempts_interval: int | timedelta,
        ) -> None:
            made = _RestartStrategies.failure_rate_restart(
                max_failure_rate, failure_interval, delay_between_attempts_interval
            )
            super().__init__(made.options)

        def get_max_failure_rate(self) -> int:
            return int(str(self.options[config.FAILURE_RATE_MAX_FAILURES.key]))

        def get_failure_interval(self) -> timedelta:
            return _milliseconds(self, config.FAILURE_RATE_INTERVAL)

        def get_delay_between_attempts_interval(self) -> timedelta:
            return _milliseconds(self, config.FAILURE_RATE_DELAY)

    class FallbackRestartStrategyConfiguration(RestartStrategyConfiguration):
        """Leaves the decision to -D and headrace.yaml."""

    @staticmethod
    def no_restart() -> RestartStrategyConfiguration:
        return RestartStrategies.NoRestartStrategyConfiguration()

    @staticmethod
    def fall_back_restart() -> RestartStrategyConfiguration:
        return RestartStrategies.FallbackRestartStrategyConfiguration()

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int, delay_between_attempts: int | timedelta
    ) -> RestartStrategyConfiguration:
        return RestartStrategies.FixedDelayRestartStrategyConfiguration(restart_attempts, delay_between_attempts)

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: int | timedelta, delay_interval: int | timedelta
    ) -> RestartStrategyConfiguration:
        return RestartStrategies.FailureRateRestartStrategyConfiguration(failure_rate, failure_interval, delay_interval)
