"""For unit tests of your own programs and functions: deterministic, with virtual time, without a JVM.

A whole program, built on an environment that `run` makes:

>>> from headrace.testing import run
>>> def word_count(env):
...     lines = env.from_collection(["to be", "or not to be"])
...     return lines.flat_map(str.split).key_by(lambda word: word).count()
>>> dict(run(word_count).records)
{'to': 2, 'be': 2, 'or': 1, 'not': 1}

One function, with input, time and snapshots in your hands:

>>> from headrace import KeyedProcessFunction, ValueStateDescriptor
>>> from headrace.testing import OneInputHarness
>>> class Count(KeyedProcessFunction):
...     def open(self, ctx):
...         self.count = ctx.get_state(ValueStateDescriptor("count", "bigint", default=0))
...
...     def process_element(self, value, ctx):
...         self.count.update(self.count.value() + 1)
...         yield value, self.count.value()
>>> with OneInputHarness(Count(), key=lambda word: word) as harness:
...     harness.process_elements(["a", "b", "a"])
...     state = harness.snapshot()
...     harness.take()
[('a', 1), ('b', 1), ('a', 2)]
>>> with OneInputHarness(Count(), key=lambda word: word, restore=state) as harness:
...     harness.process_element("a")
...     harness.take()
[('a', 3)]

A program that makes its environment itself, as it is:

>>> from headrace import StreamExecutionEnvironment
>>> from headrace.testing import local_runtime
>>> def main():
...     env = StreamExecutionEnvironment.get_execution_environment()
...     env.from_collection([1, 2]).print()
...     env.execute()
>>> with local_runtime():
...     main()
1
2
"""

from headrace.testing.harness import OneInputHarness, TwoInputHarness
from headrace.testing.programs import RunResult, local_runtime, run

__all__ = ["OneInputHarness", "RunResult", "TwoInputHarness", "local_runtime", "run"]
