"""Restart strategies: after a failure, how long to wait before the next attempt, or whether to give up.

Flink's strategies with Flink's meanings and defaults. Nothing here has a clock: the caller says what time it is, so a
test can let an hour pass in a line. A strategy counts failures and belongs to one run of one job; what the user sets
(`RestartStrategies`, options) is a plain description from which `from_configuration` makes a fresh strategy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from headrace import config
from headrace.config import Configuration, format_value
from headrace.errors import InvalidArgument


class RestartStrategy(Protocol):
    """Decides after each failure of one job."""

    def on_failure(self, now_ms: int) -> float | None:
        """Count a failure at `now_ms`; give the seconds to wait before the next attempt, or None to give up."""
        ...

    def describe(self) -> str:
        """Say in one line what this strategy does, for logs and the dashboard."""
        ...


class NoRestart:
    """The first failure ends the job."""

    def on_failure(self, now_ms: int) -> None:
        """Give up."""

    def describe(self) -> str:
        return "no restart"


@dataclass
class FixedDelay:
    """Restarts a number of times with the same pause before each.

    >>> strategy = FixedDelay(attempts=1, delay_ms=500)
    >>> strategy.on_failure(0), strategy.on_failure(1000)
    (0.5, None)
    """

    attempts: int
    delay_ms: int
    _failures: int = field(default=0, init=False)

    def on_failure(self, now_ms: int) -> float | None:
        self._failures += 1
        return self.delay_ms / 1000 if self._failures <= self.attempts else None

    def describe(self) -> str:
        return f"fixed delay: up to {self.attempts} restarts, {_duration(self.delay_ms)} apart"


@dataclass
class ExponentialDelay:
    """Restarts with growing pauses; a long quiet run resets pause and count.

    Failures that arrive while a restart is still pending belong to that restart: they change nothing and get the time
    that is left, as when one dead executor takes ten tasks with it.

    >>> strategy = ExponentialDelay(initial_backoff_ms=1000, backoff_multiplier=2.0, jitter_factor=0.0)
    >>> strategy.on_failure(0), strategy.on_failure(400), strategy.on_failure(5000), strategy.on_failure(9000)
    (1.0, 0.6, 2.0, 4.0)
    """

    initial_backoff_ms: int = config.EXPONENTIAL_INITIAL_BACKOFF.default
    max_backoff_ms: int = config.EXPONENTIAL_MAX_BACKOFF.default
    backoff_multiplier: float = config.EXPONENTIAL_MULTIPLIER.default
    reset_backoff_threshold_ms: int = config.EXPONENTIAL_RESET_THRESHOLD.default
    jitter_factor: float = config.EXPONENTIAL_JITTER.default
    attempts_before_reset_backoff: int | None = None
    rng: random.Random = field(default_factory=random.Random)
    _restarts: int = field(default=0, init=False)
    _next_restart_ms: int | None = field(default=None, init=False)  # None until the first failure

    def __post_init__(self) -> None:
        """Refuse what the options do not refuse one by one."""
        shortest, longest = _duration(self.initial_backoff_ms), _duration(self.max_backoff_ms)
        if self.initial_backoff_ms > self.max_backoff_ms:
            problem = f"initial-backoff ({shortest}) must be at most max-backoff ({longest})"
        elif self.backoff_multiplier <= 1:
            problem = f"backoff-multiplier must be greater than 1, got {self.backoff_multiplier}"
        elif not 0 <= self.jitter_factor <= 1:
            problem = f"jitter-factor must be between 0 and 1, got {self.jitter_factor}"
        else:
            return
        raise InvalidArgument("HR-1001", f"restart strategy exponential-delay: {problem}")

    def on_failure(self, now_ms: int) -> float | None:
        pending = self._next_restart_ms
        if pending is None or now_ms > pending:
            if pending is not None and now_ms - pending >= self.reset_backoff_threshold_ms:
                self._restarts = 0
            pending = self._next_restart_ms = now_ms + self._backoff_ms()
            self._restarts += 1
        if self.attempts_before_reset_backoff is not None and self._restarts > self.attempts_before_reset_backoff:
            return None
        return (pending - now_ms) / 1000

    def describe(self) -> str:
        attempts = self.attempts_before_reset_backoff
        limit = "" if attempts is None else f", up to {attempts} restarts before a reset"
        return (
            f"exponential delay: {_duration(self.initial_backoff_ms)} growing by {self.backoff_multiplier} to "
            f"{_duration(self.max_backoff_ms)}, reset after {_duration(self.reset_backoff_threshold_ms)} without "
            f"failure{limit}"
        )

    def _backoff_ms(self) -> int:
        try:
            backoff = int(self.initial_backoff_ms * self.backoff_multiplier**self._restarts)
        except OverflowError:  # hundreds of failures in a row
            return self.max_backoff_ms
        jitter = int(backoff * self.jitter_factor)
        return max(self.initial_backoff_ms, min(backoff + self.rng.randint(-jitter, jitter), self.max_backoff_ms))


@dataclass
class FailureRate:
    """Restarts as long as no more than `max_failures` failures fall into any interval.

    >>> strategy = FailureRate(max_failures=1, interval_ms=60_000, delay_ms=1000)
    >>> strategy.on_failure(0), strategy.on_failure(90_000), strategy.on_failure(91_000)
    (1.0, 1.0, None)
    """

    max_failures: int
    interval_ms: int
    delay_ms: int
    _failures: list[int] = field(default_factory=list, init=False)

    def on_failure(self, now_ms: int) -> float | None:
        # One more than is allowed: the job is given up when all of them lie within the interval.
        self._failures = [*self._failures, now_ms][-self.max_failures - 1 :]
        if len(self._failures) > self.max_failures and now_ms - self._failures[0] <= self.interval_ms:
            return None
        return self.delay_ms / 1000

    def describe(self) -> str:
        return (
            f"failure rate: up to {self.max_failures} failures in {_duration(self.interval_ms)}, "
            f"restarts {_duration(self.delay_ms)} later"
        )


_STRATEGIES: Mapping[str, tuple[Callable[..., RestartStrategy], tuple[config.Option[Any], ...]]] = {
    "fixed-delay": (FixedDelay, (config.FIXED_DELAY_ATTEMPTS, config.FIXED_DELAY_DELAY)),
    "exponential-delay": (
        ExponentialDelay,
        (
            config.EXPONENTIAL_INITIAL_BACKOFF,
            config.EXPONENTIAL_MAX_BACKOFF,
            config.EXPONENTIAL_MULTIPLIER,
            config.EXPONENTIAL_RESET_THRESHOLD,
            config.EXPONENTIAL_JITTER,
            config.EXPONENTIAL_ATTEMPTS,
        ),
    ),
    "failure-rate": (
        FailureRate,
        (config.FAILURE_RATE_MAX_FAILURES, config.FAILURE_RATE_INTERVAL, config.FAILURE_RATE_DELAY),
    ),
    "none": (NoRestart, ()),
}
"""The strategy of each `restart-strategy.type`, and the options that its arguments come from."""


def from_configuration(configuration: Configuration, checkpointing: bool) -> RestartStrategy:
    """Make the strategy that the options ask for.

    Without `restart-strategy.type` a job with checkpoints restarts by exponential delay, one without does not restart:
    it would start from nothing.

    >>> from_configuration(Configuration(), checkpointing=False).describe()
    'no restart'
    """
    kind = configuration.get(config.RESTART_TYPE) or ("exponential-delay" if checkpointing else "none")
    strategy, options = _STRATEGIES.get(kind, _STRATEGIES["none"])  # "off" and "disable" are "none" too
    return strategy(*map(configuration.get, options))


@dataclass(frozen=True)
class RestartStrategyConfiguration:
    """A restart strategy as options, for `env.set_restart_strategy`."""

    options: Mapping[str, object] = field(default_factory=dict)

    def apply_to(self, configuration: Configuration) -> None:
        """Write the options; nothing to write means that -D and headrace.yaml decide.

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
            return "as -D or headrace.yaml say"
        return from_configuration(Configuration(self.options), checkpointing=False).describe()


class RestartStrategies:
    """PyFlink's factory. Durations are milliseconds or `timedelta`.

    >>> RestartStrategies.failure_rate_restart(3, timedelta(minutes=5), 10_000).get_description()
    'failure rate: up to 3 failures in 5 min, restarts 10 s later'
    """

    @staticmethod
    def no_restart() -> RestartStrategyConfiguration:
        """The first failure ends the job."""
        return _chosen("none")

    @staticmethod
    def fall_back_restart() -> RestartStrategyConfiguration:
        """Leave the decision to -D and headrace.yaml."""
        return RestartStrategyConfiguration()

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int, delay_between_attempts: int | timedelta
    ) -> RestartStrategyConfiguration:
        """Restart a number of times with the same pause before each."""
        return _chosen("fixed-delay", restart_attempts, delay_between_attempts)

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
        pauses = initial_backoff, max_backoff, backoff_multiplier, reset_backoff_threshold, jitter_factor
        return _chosen("exponential-delay", *pauses, attempts_before_reset_backoff)

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: int | timedelta, delay_interval: int | timedelta
    ) -> RestartStrategyConfiguration:
        """Restart as long as no more than `failure_rate` failures fall into the interval."""
        return _chosen("failure-rate", failure_rate, failure_interval, delay_interval)


def _chosen(kind: str, *values: object) -> RestartStrategyConfiguration:
    given = zip(_STRATEGIES[kind][1], values, strict=True)
    options = {config.RESTART_TYPE.key: kind} | {option.key: value for option, value in given if value is not None}
    # A wrong argument is reported at the user's call, not when the job is about to start.
    from_configuration(Configuration(options), checkpointing=False)
    return RestartStrategyConfiguration(options)


def _duration(ms: int) -> str:
    return format_value(config.FIXED_DELAY_DELAY, ms)
