"""Records are scored by a remote model, with exponential backoff between retries.

Modelled on: Apache Flink, pyflink/examples/datastream/asyncio/remote_model_inference, with a model in this process.

Prints:
    +I[1,a good book,positive]
    +I[2,a bad film,negative]
    +I[3,good enough,positive]
"""

import asyncio

from headrace.pyflink.common import Row, Time, Types
from headrace.pyflink.datastream import AsyncDataStream, AsyncFunction, RuntimeContext, StreamExecutionEnvironment
from headrace.pyflink.datastream.async_retry_predicates import empty_result_predicate, has_exception_predicate
from headrace.pyflink.datastream.functions import AsyncRetryStrategy


class RemoteModel(AsyncFunction[Row, Row]):
    def open(self, runtime_context: RuntimeContext):
        self._calls = 0

    async def async_invoke(self, value: Row) -> list[Row]:
        self._calls += 1
        if self._calls == 1:
            raise OSError("the model is not loaded yet")
        await asyncio.sleep(0)
        return [Row(value["id"], value["text"], "positive" if "good" in value["text"] else "negative")]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
reviews = env.from_collection(
    [(1, "a good book"), (2, "a bad film"), (3, "good enough")],
    type_info=Types.ROW_NAMED(["id", "text"], [Types.INT(), Types.STRING()]),
)
AsyncDataStream.ordered_wait_with_retry(
    data_stream=reviews,
    async_function=RemoteModel(),
    timeout=Time.seconds(30),
    async_retry_strategy=AsyncRetryStrategy.exponential_backoff(
        max_attempts=3,
        initial_delay=10,
        max_retry_delay=100,
        multiplier=2,
        result_predicate=empty_result_predicate,
        exception_predicate=has_exception_predicate,
    ),
    capacity=1,
    output_type=Types.ROW_NAMED(["id", "text", "label"], [Types.INT(), Types.STRING(), Types.STRING()]),
).print()
env.execute("remote model inference")
