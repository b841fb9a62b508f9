"""Settings of all unit tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A slow machine is no failure, and a test that found nothing wrong in 100 examples must not fail by the clock.
settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")
