"""Requests to a database, asynchronous, in and out of order, with and without retries, with a timeout.

Modelled on: Apache Flink, Asynchronous I/O for external data access (Python tab).

Prints:
    unordered> (a,apple)
    unordered> (b,none)
    unordered> (c,none)
    retried> (a,apple)
    retried> (b,berry)
    timed> (slow,timeout)
    timed> (a,apple)
"""

import asyncio

from headrace.pyflink.common import Time, Types
from headrace.pyflink.datastream import (
    AsyncDataStream,
    AsyncFunction,
    StreamExecutionEnvironment,
    async_retry_predicates,
)
from headrace.pyflink.datastream.functions import AsyncRetryStrategy, RuntimeContext


class DatabaseClient:
    def __init__(self, host, port, credentials):
        self._data = {"a": "apple", "b": "berry"}
        self._failures = {"b": 1}

    async def query(self, key):
        await asyncio.sleep(0.001)
        if self._failures.get(key, 0) > 0:
            self._failures[key] -= 1
            raise ConnectionError(key)
        if key == "slow":
            await asyncio.sleep(3600)
        return self._data[key]

    def close(self):
        self._data = None


class AsyncDatabaseRequest(AsyncFunction[str, tuple[str, str]]):
    def __init__(self, host, port, credentials, quiet=True):
        self._host = host
        self._port = port
        self._credentials = credentials
        self._quiet = quiet

    def open(self, runtime_context: RuntimeContext):
        self._client = DatabaseClient(self._host, self._port, self._credentials)

    def close(self):
        if self._client:
            self._client.close()

    async def async_invoke(self, value: str) -> list[tuple[str, str]]:
        try:
            result = await self._client.query(value)
            return [(value, str(result))]
        except Exception:
            if self._quiet:
                return [(value, "none")]
            raise

    def timeout(self, value: str) -> list[tuple[str, str]]:
        return [(value, "timeout")]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
stream = env.from_collection(["a", "b", "c"], type_info=Types.STRING())
PAIR = Types.TUPLE([Types.STRING(), Types.STRING()])

AsyncDataStream.unordered_wait(
    data_stream=stream,
    async_function=AsyncDatabaseRequest("127.0.0.1", "1234", None),
    timeout=Time.seconds(10),
    capacity=100,
    output_type=PAIR,
).print("unordered")
async_retry_strategy = AsyncRetryStrategy.fixed_delay(
    max_attempts=3,
    backoff_time_millis=10,
    result_predicate=async_retry_predicates.empty_result_predicate,
    exception_predicate=async_retry_predicates.has_exception_predicate,
)
AsyncDataStream.ordered_wait_with_retry(
    data_stream=stream.filter(lambda key: key != "c"),
    async_function=AsyncDatabaseRequest("127.0.0.1", "1234", None, quiet=False),
    timeout=Time.seconds(10),
    async_retry_strategy=async_retry_strategy,
    capacity=1000,
    output_type=PAIR,
).print("retried")
AsyncDataStream.ordered_wait(
    env.from_collection(["slow", "a"], type_info=Types.STRING()),
    AsyncDatabaseRequest("127.0.0.1", "1234", None),
    Time.milliseconds(200),
    2,
    PAIR,
).print("timed")
env.execute()
