"""Expired state that nobody reads goes away while the job runs (SPEC R2.5, and beyond it)."""

import pytest

from headrace import KeyedProcessFunction, StateTtlConfig, Time, ValueStateDescriptor
from namespaces import entry_count
from rig import Services, data, plan_of, subtask, work_off


class WriteOnce(KeyedProcessFunction):
    def open(self, runtime_context):
        descriptor = ValueStateDescriptor("seen", "bigint")
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(5)).build())
        self.seen = runtime_context.get_state(descriptor)

    def process_element(self, value, ctx):
        self.seen.update(value)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_what_is_written_once_and_never_read_is_forgotten(tmp_path, backend):
    def program(env):
        env.get_configuration().set("state.backend.type", backend).set("io.tmp.dirs", str(tmp_path))
        env.from_collection([1]).key_by(lambda n: n).process(WriteOnce())

    services = Services()
    task = subtask(plan_of(program), "Process", services=services)
    task.open()
    task.receive(data(*range(3000)))
    work_off(task, 5000)
    state = task._chain.operators[0].backend
    assert entry_count(state, "seen") == 3000
    services.time = 4999
    task.upkeep()
    assert entry_count(state, "seen") == 3000
    services.time = 6000  # rocksdb sweeps a few times in the time that an entry lives, not at every call
    task.upkeep()
    assert entry_count(state, "seen") == 0
    task.close()
