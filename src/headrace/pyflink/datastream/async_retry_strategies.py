"""`pyflink.datastream.async_retry_strategies`."""

from __future__ import annotations

from typing import Any

from headrace.api.async_io import AsyncRetryStrategy
from headrace.api.async_io import ExponentialBackoffDelayRetryStrategy as ExponentialBackoffDelayRetryStrategy
from headrace.api.async_io import FixedDelayRetryStrategy as FixedDelayRetryStrategy
from headrace.api.async_io import NoRetryStrategy as NoRetryStrategy
from headrace.api.async_io import RetryPredicate as RetryPredicate

__all__ = [
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
    "NoRetryStrategy",
    "RetryPredicate",
]

NO_RETRY_STRATEGY: AsyncRetryStrategy[Any] = NoRetryStrategy()
