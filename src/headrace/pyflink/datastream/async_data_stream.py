"""`pyflink.datastream.async_data_stream`; Headrace's own name is `stream.map_async(...)`."""

from __future__ import annotations

from typing import Any

from headrace.api.async_io import AsyncFunction, AsyncRetryStrategy
from headrace.api.durations import Time
from headrace.api.stream import DataStream
from headrace.pyflink.datastream.async_retry_strategies import NO_RETRY_STRATEGY
from headrace.records.types import TypeInformation

__all__ = ["AsyncDataStream"]


class AsyncDataStream:
    """Applies an AsyncFunction to a stream."""

    @staticmethod
    def unordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: Time,
        capacity: int = 100,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Results leave as they are done."""
        return AsyncDataStream.unordered_wait_with_retry(
            data_stream, async_function, timeout, NO_RETRY_STRATEGY, capacity, output_type
        )

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: Time,
        async_retry_strategy: AsyncRetryStrategy[Any],
        capacity: int = 100,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Results leave as they are done; calls are made again as a strategy says."""
        return data_stream.map_async(
            async_function, timeout, output_type, capacity=capacity, ordered=False, retry=async_retry_strategy
        )

    @staticmethod
    def ordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: Time,
        capacity: int = 100,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Results leave in the order of their records."""
        return AsyncDataStream.ordered_wait_with_retry(
            data_stream, async_function, timeout, NO_RETRY_STRATEGY, capacity, output_type
        )

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction[Any, Any],
        timeout: Time,
        async_retry_strategy: AsyncRetryStrategy[Any],
        capacity: int = 100,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Results leave in the order of their records; calls are made again as a strategy says."""
        return data_stream.map_async(
            async_function, timeout, output_type, capacity=capacity, ordered=True, retry=async_retry_strategy
        )
