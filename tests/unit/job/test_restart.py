import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import Configuration, Origin
from headrace.errors import ConfigError, HeadraceError, InvalidArgument
from headrace.job.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategies,
    from_configuration,
)

HOUR = 3_600_000


def delays(strategy, *times):
    return [strategy.on_failure(now) for now in times]


def test_no_restart_gives_up_at_once():
    assert delays(NoRestart(), 0) == [None]


def test_fixed_delay_restarts_as_often_as_it_is_told():
    assert delays(FixedDelay(2, 1500), 0, 10**9, 2 * 10**9, 3 * 10**9) == [1.5, 1.5, None, None]
    assert delays(FixedDelay(0, 0), 0) == [None]


def test_failure_rate_counts_within_the_interval():
    # Two failures a minute are allowed; the third within it ends the job.
    assert delays(FailureRate(2, 60_000, 1000), 0, 30_000, 59_999) == [1.0, 1.0, None]
    assert delays(FailureRate(2, 60_000, 1000), 0, 30_000, 60_001, 90_001) == [1.0, 1.0, 1.0, 1.0]
    # As in Flink the interval includes its end.
    assert delays(FailureRate(1, 60_000, 0), 0, 60_000) == [0.0, None]


def test_exponential_delay_grows_to_its_maximum():
    strategy = ExponentialDelay(1000, 5000, 2.0, HOUR, 0.0)
    assert delays(strategy, 0, 100_000, 200_000, 300_000, 400_000) == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_exponential_delay_is_reset_after_a_quiet_time_counted_from_the_restart():
    strategy = ExponentialDelay(1000, 60_000, 2.0, 10_000, 0.0)
    assert delays(strategy, 0, 5000, 16_999) == [1.0, 2.0, 4.0]  # restarted at 7000: 9999 ms are not enough
    assert delays(ExponentialDelay(1000, 60_000, 2.0, 10_000, 0.0), 0, 5000, 17_000) == [1.0, 2.0, 1.0]


def test_exponential_delay_counts_failures_of_one_restart_once():
    strategy = ExponentialDelay(1000, 60_000, 2.0, HOUR, 0.0)
    assert delays(strategy, 0, 0, 250, 1000, 1001) == [1.0, 1.0, 0.75, 0.0, 2.0]


def test_exponential_delay_gives_up_after_its_attempts_until_a_reset():
    strategy = ExponentialDelay(1000, 60_000, 2.0, HOUR, 0.0, attempts_before_reset_backoff=2)
    assert delays(strategy, 0, 10_000, 20_000, 20_001) == [1.0, 2.0, None, None]
    strategy = ExponentialDelay(1000, 60_000, 2.0, HOUR, 0.0, attempts_before_reset_backoff=1)
    assert delays(strategy, 0, HOUR + 1000) == [1.0, 1.0]


def test_exponential_delay_survives_ten_thousand_failures():
    strategy = ExponentialDelay(1000, 60_000, 10.0, HOUR, 0.1, rng=random.Random(1))
    results = delays(strategy, *(i * 100_000 for i in range(10_000)))
    assert results[-1] == 60.0


@given(st.integers(0, 2**32), st.floats(0, 1), st.floats(1.01, 10))
def test_jitter_stays_within_its_bounds(seed, jitter, multiplier):
    strategy = ExponentialDelay(1000, 60_000, multiplier, HOUR, jitter, rng=random.Random(seed))
    for attempt in range(8):
        backoff = 1000 * multiplier**attempt
        delay = strategy.on_failure(attempt * 100_000) * 1000
        assert 1000 <= delay <= 60_000
        assert min(60_000, max(1000, backoff * (1 - jitter))) - 2 <= delay <= backoff * (1 + jitter) + 2


def test_the_same_seed_gives_the_same_jitter():
    def story():
        return delays(ExponentialDelay(rng=random.Random(7)), *(i * 100_000 for i in range(9)))

    assert story() == story()
    assert len(set(story())) > 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ExponentialDelay(120_000, 60_000),
            (
                "[HR-1001] restart strategy exponential-delay: initial-backoff (2 min) must be at most max-backoff (1 min)"
            ),
        ),
        (
            lambda: ExponentialDelay(backoff_multiplier=1.0),
            "[HR-1001] restart strategy exponential-delay: backoff-multiplier must be greater than 1, got 1.0",
        ),
        (
            lambda: ExponentialDelay(jitter_factor=1.5),
            "[HR-1001] restart strategy exponential-delay: jitter-factor must be between 0 and 1, got 1.5",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert str(caught.value) == message


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "checkpointing", "description"),
    [
        ({}, False, "no restart"),
        ({}, True, "exponential delay: 1 s growing by 1.5 to 1 min, reset after 1 h without failure"),
        ({"restart-strategy.type": "none"}, True, "no restart"),
        ({"restart-strategy.type": "disable"}, True, "no restart"),
        ({"restart-strategy.type": "off"}, True, "no restart"),
        ({"restart-strategy": "fixed-delay"}, False, "fixed delay: up to 1 restarts, 1 s apart"),
        (
            {"restart-strategy.type": "failure-rate"},
            False,
            "failure rate: up to 1 failures in 1 min, restarts 1 s later",
        ),
        (
            {
                "restart-strategy.type": "exponential-delay",
                "restart-strategy.exponential-delay.attempts-before-reset-backoff": "10",
            },
            False,
            (
                "exponential delay: 1 s growing by 1.5 to 1 min, reset after 1 h without failure, "
                "up to 10 restarts before a reset"
            ),
        ),
    ],
)
def test_the_options_choose_the_strategy(options, checkpointing, description):
    assert from_configuration(Configuration(options), checkpointing).describe() == description


def test_each_strategy_made_from_a_configuration_counts_for_itself():
    configuration = Configuration({"restart-strategy.type": "fixed-delay"})
    for _ in range(2):
        assert delays(from_configuration(configuration, checkpointing=False), 0, 1) == [1.0, None]


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ConfigError) as caught:
        Configuration({"restart-strategy.type": "sometimes"})
    assert str(caught.value) == (
        "[HR-1001] option 'restart-strategy.type': 'sometimes' is not one of none, disable, off, fixed-delay, "
        "exponential-delay, failure-rate; for example 'none'"
    )


# --- PyFlink's factory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "description"),
    [
        (RestartStrategies.no_restart(), "no restart"),
        (RestartStrategies.fixed_delay_restart(3, 500), "fixed delay: up to 3 restarts, 500 ms apart"),
        (
            RestartStrategies.fixed_delay_restart(3, timedelta(minutes=1)),
            "fixed delay: up to 3 restarts, 1 min apart",
        ),
        (
            RestartStrategies.failure_rate_restart(3, 300_000, 10_000),
            "failure rate: up to 3 failures in 5 min, restarts 10 s later",
        ),
        (
            RestartStrategies.exponential_delay_restart(1, 1000, 1.1, 2000, 0.1),
            "exponential delay: 1 ms growing by 1.1 to 1 s, reset after 2 s without failure",
        ),
        (RestartStrategies.fall_back_restart(), "as -D or headrace.yaml say"),
    ],
)
def test_the_factory(chosen, description):
    assert chosen.get_description() == description


def test_a_choice_replaces_the_one_before_it():
    configuration = Configuration()
    RestartStrategies.exponential_delay_restart(attempts_before_reset_backoff=3).apply_to(configuration)
    RestartStrategies.exponential_delay_restart().apply_to(configuration)
    assert not configuration.contains_key("restart-strategy.exponential-delay.attempts-before-reset-backoff")


def test_falling_back_uncovers_the_command_line():
    configuration = Configuration().set("restart-strategy.type", "failure-rate", Origin.COMMAND_LINE)
    RestartStrategies.no_restart().apply_to(configuration)
    assert isinstance(from_configuration(configuration, checkpointing=True), NoRestart)
    RestartStrategies.fall_back_restart().apply_to(configuration)
    assert isinstance(from_configuration(configuration, checkpointing=True), FailureRate)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RestartStrategies.fixed_delay_restart(-1, 0), "fixed-delay.attempts': -1"),
        (lambda: RestartStrategies.fixed_delay_restart(1, -5), "fixed-delay.delay': -5"),
        (lambda: RestartStrategies.fixed_delay_restart(1, "soon"), "fixed-delay.delay': 'soon'"),
        (lambda: RestartStrategies.exponential_delay_restart(backoff_multiplier=1.0), "backoff-multiplier"),
        (lambda: RestartStrategies.exponential_delay_restart(0), "exponential-delay.initial-backoff': 0"),
        (
            lambda: RestartStrategies.exponential_delay_restart(attempts_before_reset_backoff=0),
            "exponential-delay.attempts-before-reset-backoff': 0",
        ),
        (lambda: RestartStrategies.failure_rate_restart(0, 1, 1), "failure-rate.max-failures-per-interval': 0"),
        (lambda: RestartStrategies.failure_rate_restart(1, 0, 1), "failure-rate.failure-rate-interval': 0"),
    ],
)
def test_the_factory_refuses_at_the_call(call, message):
    with pytest.raises(HeadraceError, match=message):
        call()
