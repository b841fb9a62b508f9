"""In-flight data at another parallelism, through three phases: SPEC R6.7 UnalignedCheckpointRescaleITCase"""

import pytest

from effort import EFFORT
from headrace.testing.simulation.run import Run
from headrace.testing.simulation.world import PROGRAMS, one_input

UNALIGNED = {
    "execution.checkpointing.interval": "15 ms",
    "execution.checkpointing.unaligned.enabled": "true",
    "execution.checkpointing.aligned-checkpoint-timeout": "0 ms",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.max-concurrent-checkpoints": "1",
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
}
PAIRS = [(3, 7), (7, 3), (1, 2), (2, 7)]
CASES = [(program, old, new) for program in PROGRAMS for old, new in PAIRS] + [(one_input, 12, 7)]
if EFFORT > 1:  # as long as all others together
    CASES += [(program, 12, 7) for program in PROGRAMS if program is not one_input] + [(one_input, 20, 21)]


def until_completed(run, more):
    """Let so many more checkpoints complete, or the job end."""
    wanted = run.outcome.completed + more
    while run.outcome.completed < wanted and not run.driver.ended:
        run.outcome.actions += 1
        run.act()
        run._check()


def persisted(run):
    """Bytes of in-flight data in the checkpoints so far."""
    return sum(one.totals.persisted_data for one in run.driver.service.coordinator.stats.snapshot().history)


@pytest.mark.parametrize(("program", "old", "new"), CASES, ids=lambda one: getattr(one, "__name__", None))
def test_nothing_is_lost_or_repeated(program, old, new):
    run = Run(old * 100 + new, options=UNALIGNED, calm=True, program=program, parallelism=[old, new, new])
    run.max_actions = 200_000  # rows grow with the square of the parallelism
    until_completed(run, 1)
    run.restart("phase 1: a worker was killed")
    until_completed(run, 1)
    if program is one_input and old > 1:
        assert persisted(run) > 0
    run.replace_driver()  # phase 2: another parallelism
    until_completed(run, 1)
    run.replace_driver()  # phase 3: to the end
    assert run.go().restarts >= 1
    assert run.outcome.drivers == 3
