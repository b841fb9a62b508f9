"""Schedules of full checkpoints. SPEC R7.6 (c)"""

from datetime import datetime

import pytest

from headrace.driver.cron_schedule import cron
from headrace.errors import ConfigError


def ms(*when):
    return int(datetime(*when).astimezone().timestamp() * 1000)


def test_the_next_time_is_after_now():
    nightly = cron("0 3 * * *")
    assert nightly(ms(2026, 11, 15, 2, 59)) == ms(2026, 11, 15, 3, 0)
    assert nightly(ms(2026, 11, 15, 3, 0)) == ms(2026, 11, 16, 3, 0)


def test_nonsense_is_refused_with_the_key():
    with pytest.raises(ConfigError, match=r"headrace\.full-checkpoint\.cron: 'at night' is no schedule"):
        cron("at night")
