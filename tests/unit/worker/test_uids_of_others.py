"""A snapshot is restored by a program whose operators have each other's uids (SPEC R8.5), on the local runtime."""

import asyncio

import pytest

from headrace import CheckpointedFunction, ListStateDescriptor, SourceFunction, StreamExecutionEnvironment
from headrace.errors import StateMigrationError
from headrace.local import LocalRun


def run(program, restore=None, parallelism=1, until=None):
    """Runs a program; its printed lines, and a snapshot at the end."""
    env = StreamExecutionEnvironment.local().set_parallelism(parallelism)
    program(env)
    lines, taken = [], []
    local = LocalRun(
        env._job_plan("job"), lambda channel, payload: lines.extend(payload.decode().splitlines()), restore=restore
    )
    local.run(
        until=until, stop=lambda: until is None and len(lines) >= 100, then=lambda: taken.append(local.snapshot())
    )
    return sorted(int(line.split("> ")[-1]) for line in lines), taken[0]


def numbers(source, first=0, last=399):
    return lambda env: env.from_sequence(first, last).uid(source).map(lambda n: n).uid("same").print()


class Function(SourceFunction):
    def run(self, ctx):
        for number in range(400):
            ctx.collect(number)

    def cancel(self):
        pass


class Counting(Function, CheckpointedFunction):
    """A source function with state of its own."""

    def initialize_state(self, context):
        self._state = context.get_operator_state_store().get_list_state(ListStateDescriptor("offset"))

    def snapshot_state(self, context):
        self._state.update([1])


# --- sources ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("function", [Function, Counting])
def test_a_source_in_the_place_of_a_source_function_reads_from_its_start(function, parallelism):  # SPEC R8.5, R9.4
    _, snapshot = run(lambda env: env.add_source(function()).uid("numbers").map(lambda n: n).uid("same").print())
    read, _ = run(numbers("numbers", 1000, 1049), snapshot, parallelism)
    assert read == list(range(1000, 1050))


def test_splits_go_to_no_source_function():  # SPEC R8.5, R9.4
    _, snapshot = run(numbers("numbers"))
    with pytest.raises(
        StateMigrationError, match=r"^\[HR-2104\] the snapshot has splits of a source for 'Custom Source' \(.*:\d+\), "
    ):
        run(lambda env: env.add_source(Function()).uid("numbers").map(lambda n: n).uid("same").print(), snapshot)


@pytest.mark.parametrize("parallelism", [1, 4])
def test_a_source_that_had_finished_stays_finished_beside_a_new_operator(parallelism):  # SPEC R4.5
    read, snapshot = run(numbers("numbers", 0, 9), until=1)
    assert read == list(range(10))
    again, _ = run(
        lambda env: env.from_sequence(0, 9).uid("numbers").map(lambda n: n).uid("new").print(), snapshot, parallelism
    )
    assert again == []


# --- others -------------------------------------------------------------------------------------------------------------


async def slow(number):
    await asyncio.sleep(100)
    return number


def test_records_that_wait_for_their_calls_are_not_lost():  # SPEC R8.5, R14.1
    _, snapshot = run(
        lambda env: env.from_sequence(0, 9).uid("numbers").map_async(slow, None).uid("call").print(), until=1
    )
    with pytest.raises(StateMigrationError, match=r"records that wait for asynchronous calls for 'Map' "):
        run(lambda env: env.from_sequence(0, 9).uid("numbers").map(lambda n: n).uid("call").print(), snapshot)


def test_keyed_state_is_not_lost():  # SPEC R8.5
    def keyed(env):
        env.from_sequence(0, 399).uid("numbers").key_by(lambda n: n % 4).reduce(lambda a, b: a + b).uid("sum").print()

    _, snapshot = run(keyed)
    with pytest.raises(
        StateMigrationError, match=r"the snapshot has keyed state for 'Map' .* which cannot take it: give"
    ):
        run(lambda env: env.from_sequence(0, 399).uid("numbers").map(lambda n: n).uid("sum").print(), snapshot)
