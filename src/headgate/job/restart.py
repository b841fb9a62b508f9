"""Restart strategies: after a failure, how long to wait before the next attempt, or whether to give up.

Flink's strategies with Flink's meanings and defaults. Nothing here has a clock: the caller says what time it is, so a
test can let an hour pass in a line. A strategy counts failures and belongs to one run of one job; what the user sets
(`RestartStrategies`, options) is a plain description from which `from_configuration` makes a fresh strategy.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from headgate import config
from headgate.config import Configuration, format_value
from headgate.errors import InvalidArgument

__all__ = [
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "NoRestart",
    "RestartStrategies",
    "RestartStrategy",
    "RestartStrategyConfiguration",
    "from_configuration",
]


class RestartStrategy(Protocol):
    """Decides after each failure of one job."""

    def on_failure(self, now_ms: int) -> float | None:
        """Count a failure at `now_ms`; give the seconds to wait before the next attempt, or None to give up."""
        ...

    def describe(self) -> str:
        """Say in one line what this strategy does, for logs and the dashboard."""
        ...


class NoRestart:
    """The first failure ends the job.

    >>> print(NoRestart().on_failure(now_ms=0))
    None
    """

    def on_failure(self, now_ms: int) -> None:
        """Give up."""

    def describe(self) -> str:
        """Say what this strategy does."""
        return "no restart"


class FixedDelay:
    """Restarts a number of times with the same pause before each.

    >>> strategy = FixedDelay(attempts=1, delay_ms=500)
    >>> strategy.on_failure(0), strategy.on_failure(1000)
    (0.5, None)
    """

    def __init__(self, attempts: int, delay_ms: int) -> None:
        _require(attempts >= 0, f"fixed-delay: attempts must be at least 0, got {attempts}")
        _require(delay_ms >= 0, f"fixed-delay: delay must be at least 0 ms, got {delay_ms}")
        self._attempts = attempts
        self._delay_ms = delay_ms
        self._failures = 0

    def on_failure(self, now_ms: int) -> float | None:
        """Count a failure; None after `attempts` restarts."""
        self._failures += 1
        return self._delay_ms / 1000 if self._failures <= self._attempts else None

    def describe(self) -> str:
        """Say what this strategy does."""
        return f"fixed delay: up to {self._attempts} restarts, {_duration(self._delay_ms)} apart"


class ExponentialDelay:
    """Restarts with growing pauses; a long quiet run resets pause and count.

    Failures that arrive while a restart is still pending belong to that restart: they change nothing and get the time
    that is left, as when one dead executor takes ten tasks with it.

    >>> strategy = ExponentialDelay(initial_backoff_ms=1000, backoff_multiplier=2.0, jitter_factor=0.0)
    >>> strategy.on_failure(0), strategy.on_failure(400), strategy.on_failure(5000), strategy.on_failure(9000)
    (1.0, 0.6, 2.0, 4.0)
    """

    def __init__(
        self,
        initial_backoff_ms: int = config.EXPONENTIAL_INITIAL_BACKOFF.default,
        max_backoff_ms: int = config.EXPONENTIAL_MAX_BACKOFF.default,
        backoff_multiplier: float = config.EXPONENTIAL_MULTIPLIER.default,
        reset_backoff_threshold_ms: int = config.EXPONENTIAL_RESET_THRESHOLD.default,
        jitter_factor: float = config.EXPONENTIAL_JITTER.default,
        attempts_before_reset_backoff: int | None = None,
        rng: random.Random | None = None,
    ) -> None:
        _require(
            1 <= initial_backoff_ms <= max_backoff_ms,
            f"exponential-delay: initial-backoff ({_duration(initial_backoff_ms)}) must be at least 1 ms and at most "
            f"max-backoff ({_duration(max_backoff_ms)})",
        )
        _require(
            backoff_multiplier > 1,
            f"exponential-delay: backoff-multiplier must be greater than 1, got {backoff_multiplier}",
        )
        _require(
            reset_backoff_threshold_ms >= 1,
            f"exponential-delay: reset-backoff-threshold must be at least 1 ms, got {reset_backoff_threshold_ms}",
        )
        _require(
            0 <= jitter_factor <= 1,
            f"exponential-delay: jitter-factor must be between 0 and 1, got {jitter_factor}",
        )
        _require(
            attempts_before_reset_backoff is None or attempts_before_reset_backoff >= 1,
            "exponential-delay: attempts-before-reset-backoff must be at least 1, or None for no limit, "
            f"got {attempts_before_reset_backoff}",
        )
        self._initial_ms = initial_backoff_ms
        self._max_ms = max_backoff_ms
        self._multiplier = backoff_multiplier
        self._reset_threshold_ms = reset_backoff_threshold_ms
        self._jitter_factor = jitter_factor
        self._attempts = attempts_before_reset_backoff
        self._rng = rng or random.Random()
        self._restarts = 0
        self._next_restart_ms: int | None = None  # None until the first failure

    def on_failure(self, now_ms: int) -> float | None:
        """Count a failure unless a restart is pending; None once the attempts are used up."""
        pending = self._next_restart_ms
        if pending is None or now_ms > pending:
            if pending is not None and now_ms - pending >= self._reset_threshold_ms:
                self._restarts = 0
            pending = self._next_restart_ms = now_ms + self._backoff_ms()
            self._restarts += 1
        if self._attempts is not None and self._restarts > self._attempts:
            return None
        return (pending - now_ms) / 1000

    def describe(self) -> str:
        """Say what this strategy does."""
        limit = "" if self._attempts is None else f", up to {self._attempts} restarts before a reset"
        return (
            f"exponential delay: {_duration(self._initial_ms)} growing by {self._multiplier} to "
            f"{_duration(self._max_ms)}, reset after {_duration(self._reset_threshold_ms)} without failure{limit}"
        )

    def _backoff_ms(self) -> int:
        try:
            backoff = int(self._initial_ms * self._multiplier**self._restarts)
        except OverflowError:  # hundreds of failures in a row
            return self._max_ms
        jitter = int(backoff * self._jitter_factor)
        return max(self._initial_ms, min(backoff + self._rng.randint(-jitter, jitter), self._max_ms))


class FailureRate:
    """Restarts as long as no more than `max_failures` failures fall into any interval.

    >>> strategy = FailureRate(max_failures=1, interval_ms=60_000, delay_ms=1000)
    >>> strategy.on_failure(0), strategy.on_failure(90_000), strategy.on_failure(91_000)
    (1.0, 1.0, None)
    """

    def __init__(self, max_failures: int, interval_ms: int, delay_ms: int) -> None:
        _require(max_failures >= 1, f"failure-rate: max-failures-per-interval must be at least 1, got {max_failures}")
        _require(interval_ms >= 1, f"failure-rate: failure-rate-interval must be at least 1 ms, got {interval_ms}")
        _require(delay_ms >= 0, f"failure-rate: delay must be at least 0 ms, got {delay_ms}")
        self._max_failures = max_failures
        self._interval_ms = interval_ms
        self._delay_ms = delay_ms
        # One more than is allowed: the job is given up when all of them lie within the interval.
        self._failures: deque[int] = deque(maxlen=max_failures + 1)

    def on_failure(self, now_ms: int) -> float | None:
        """Count a failure; None if there were too many within the interval."""
        self._failures.append(now_ms)
        if len(self._failures) > self._max_failures and now_ms - self._failures[0] <= self._interval_ms:
            return None
        return self._delay_ms / 1000

    def describe(self) -> str:
        """Say what this strategy does."""
        return (
            f"failure rate: up to {self._max_failures} failures in {_duration(self._interval_ms)}, "
            f"restarts {_duration(self._delay_ms)} later"
        )


def from_configuration(
    configuration: Configuration, checkpointing: bool, rng: random.Random | None = None
) -> RestartStrategy:
    """Make the strategy that the options ask for.

    Without `restart-strategy.type` a job with checkpoints restarts by exponential delay, one without does not restart:
    it would start from nothing.

    >>> from_configuration(Configuration(), checkpointing=False).describe()
    'no restart'
    """
    get = configuration.get
    kind = get(config.RESTART_TYPE) or ("exponential-delay" if checkpointing else "none")
    match kind:
        case "fixed-delay":
            return FixedDelay(get(config.FIXED_DELAY_ATTEMPTS), get(config.FIXED_DELAY_DELAY))
        case "exponential-delay":
            return ExponentialDelay(
                get(config.EXPONENTIAL_INITIAL_BACKOFF),
                get(config.EXPONENTIAL_MAX_BACKOFF),
                get(config.EXPONENTIAL_MULTIPLIER),
                get(config.EXPONENTIAL_RESET_THRESHOLD),
                get(config.EXPONENTIAL_JITTER),
                get(config.EXPONENTIAL_ATTEMPTS),
                rng,
            )
        case "failure-rate":
            return FailureRate(
                get(config.FAILURE_RATE_MAX_FAILURES),
                get(config.FAILURE_RATE_INTERVAL),
                get(config.FAILURE_RATE_DELAY),
            )
        case _:
            return NoRestart()


@dataclass(frozen=True)
class RestartStrategyConfiguration:
    """What a user asked for: the options that say so. `env.set_restart_strategy` takes it."""

    options: Mapping[str, object] = field(default_factory=dict)

    def apply_to(self, configuration: Configuration) -> None:
        """Write the options; nothing to write means that -D and headgate.yaml decide.

        >>> configuration = Configuration()
        >>> RestartStrategies.fixed_delay_restart(3, 500).apply_to(configuration)
        >>> configuration.get("restart-strategy.fixed-delay.attempts")
        3
        """
        for key in config.OPTIONS:
            if key.startswith("restart-strategy."):  # a value left over from an earlier choice would mix with this one
                configuration.remove_config(key)
        for key, value in self.options.items():
            configuration.set(key, value)

    def get_description(self) -> str:
        """Say in one line what will happen after a failure.

        >>> RestartStrategies.fixed_delay_restart(3, 500).get_description()
        'fixed delay: up to 3 restarts, 500 ms apart'
        """
        if not self.options:
            return "as -D or headgate.yaml say"
        return from_configuration(Configuration(self.options), checkpointing=False).describe()


class RestartStrategies:
    """PyFlink's factory. Durations are milliseconds or `timedelta`.

    >>> RestartStrategies.failure_rate_restart(3, timedelta(minutes=5), 10_000).get_description()
    'failure rate: up to 3 failures in 5 min, restarts 10 s later'
    """

    @staticmethod
    def no_restart() -> RestartStrategyConfiguration:
        """The first failure ends the job."""
        return _checked({config.RESTART_TYPE.key: "none"})

    @staticmethod
    def fall_back_restart() -> RestartStrategyConfiguration:
        """Leave the decision to -D and headgate.yaml."""
        return RestartStrategyConfiguration()

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int, delay_between_attempts: int | timedelta
    ) -> RestartStrategyConfiguration:
        """Restart a number of times with the same pause before each."""
        return _checked(
            {
                config.RESTART_TYPE.key: "fixed-delay",
                config.FIXED_DELAY_ATTEMPTS.key: restart_attempts,
                config.FIXED_DELAY_DELAY.key: delay_between_attempts,
            }
        )

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: int | timedelta = config.EXPONENTIAL_INITIAL_BACKOFF.default,
        max_backoff: int | timedelta = config.EXPONENTIAL_MAX_BACKOFF.default,
        backoff_multiplier: float = config.EXPONENTIAL_MULTIPLIER.default,
        reset_backoff_threshold: int | timedelta = config.EXPONENTIAL_RESET_THRESHOLD.default,
        jitter_factor: float = config.EXPONENTIAL_JITTER.default,
        attempts_before_reset_backoff: int | None = None,
    ) -> RestartStrategyConfiguration:
        """Restart with growing pauses; by default without end."""
        options: dict[str, object] = {
            config.RESTART_TYPE.key: "exponential-delay",
            config.EXPONENTIAL_INITIAL_BACKOFF.key: initial_backoff,
            config.EXPONENTIAL_MAX_BACKOFF.key: max_backoff,
            config.EXPONENTIAL_MULTIPLIER.key: backoff_multiplier,
            config.EXPONENTIAL_RESET_THRESHOLD.key: reset_backoff_threshold,
            config.EXPONENTIAL_JITTER.key: jitter_factor,
        }
        if attempts_before_reset_backoff is not None:
            options[config.EXPONENTIAL_ATTEMPTS.key] = attempts_before_reset_backoff
        return _checked(options)

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: int | timedelta, delay_interval: int | timedelta
    ) -> RestartStrategyConfiguration:
        """Restart as long as no more than `failure_rate` failures fall into the interval."""
        return _checked(
            {
                config.RESTART_TYPE.key: "failure-rate",
                config.FAILURE_RATE_MAX_FAILURES.key: failure_rate,
                config.FAILURE_RATE_INTERVAL.key: failure_interval,
                config.FAILURE_RATE_DELAY.key: delay_interval,
            }
        )


def _checked(options: Mapping[str, object]) -> RestartStrategyConfiguration:
    # A wrong argument is reported at the user's call, not when the job is about to start.
    from_configuration(Configuration(options), checkpointing=False)
    return RestartStrategyConfiguration(options)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidArgument(f"restart strategy {message}")


def _duration(ms: int) -> str:
    return format_value(config.FIXED_DELAY_DELAY, ms)
