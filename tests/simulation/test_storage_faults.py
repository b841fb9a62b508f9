"""Storage faults one by one: counted, reported, tolerated as configured; a bad file is never restored from."""

import errno
import re

import pytest

from headrace.job.status import JobStatus
from headrace.testing.simulation.run import Run
from headrace.testing.simulation.world import one_input
from headrace.testing.storage_faults import Fault, FaultKind

COMMON = {
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "web.checkpoints.history": "10000",
    "execution.checkpointing.interval": "20 ms",
    "execution.checkpointing.timeout": "2000 ms",
    "execution.checkpointing.data-inline-threshold": "0 b",
    "execution.checkpointing.num-retained": "3",
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
    "headrace.alignment.spill.max": "1 gb",
}
SEEDS = range(8)


def calm_run(seed, **options):
    return Run(
        seed,
        options=COMMON | {key.replace("_", "."): value for key, value in options.items()},
        calm=True,
        program=one_input,
    )


def failures(run):
    """The checkpoints that failed, with what was said."""
    stats = run.driver.service.coordinator.stats.snapshot()
    return [one for one in stats.history if one.failure_reason is not None]


FAULTS = {
    "write error": (Fault(FaultKind.FAIL, 3, within="/chk-", amount=errno.EIO), "injected fault"),
    "full disk": (Fault(FaultKind.FAIL, 3, within="/chk-", amount=errno.ENOSPC), "the disk is full"),
    "half-written file": (Fault(FaultKind.TORN, 3, within="/chk-", amount=5), "injected fault"),
    "metadata": (Fault(FaultKind.FAIL, 2, within="_metadata", amount=errno.EIO), "injected fault"),
    "slow write": (Fault(FaultKind.SLOW, 1, within="/chk-", amount=60_000), "took longer than"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_costs_a_checkpoint_and_nothing_else(name, seed):  # SPEC R5.5, R5.6
    fault, said = FAULTS[name]
    run = calm_run(seed)
    run.store.inject(fault)
    outcome = run.go()
    assert outcome.restarts == 0
    found = failures(run)
    assert run.driver.service.coordinator.stats.snapshot().counts.failed >= 1
    assert any(said in (one.failure_message or "") for one in found), [one.failure_message for one in found]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_not_tolerated_restarts_the_job(seed):  # SPEC R5.6
    run = Run(
        seed,
        options=COMMON | {"execution.checkpointing.tolerable-failed-checkpoints": "0"},
        calm=True,
        program=one_input,
    )
    run.store.inject(Fault(FaultKind.FAIL, 3, within="_metadata", amount=errno.EIO))
    run.store.inject(Fault(FaultKind.SLOW, 4, within="/chk-", amount=60_000))
    outcome = run.go()
    assert outcome.restarts >= 1


def damaged_and_restarted(seed, **options):
    """A run whose newest checkpoint gets a flipped byte before its job restarts."""
    run = calm_run(seed, **options)
    while len(run.driver.completed) < 2:
        run.act()
    run.flipped = True
    newest = run.driver.completed[-1]
    files = sorted(path for path in run.store.objects if f"/chk-{newest}/" in path and "_metadata" not in path)
    run.store.flip(files[0], 3)
    run.restart("a worker was killed")
    while not run.driver.ended:  # a worker finds the damage
        run.act()
    return run


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flipped_byte_is_never_restored_from(seed):
    run = damaged_and_restarted(seed)
    assert run.driver.machine.status is JobStatus.FAILED
    assert re.search(r"DAMAGED.*may have committed", str(run.driver.machine.error))
    assert any("/chk-" in path for path in run.store.objects)  # the user may accept repeated output, and resume


def test_a_chain_that_is_too_long_is_cut_by_a_full_checkpoint():  # SPEC R7.6 (b)
    options = COMMON | {
        "execution.checkpointing.incremental": "true",
        "headrace.full-checkpoint.max-chain-length": "1",
        "headrace.full-checkpoint.cooldown": "0 ms",
    }
    reasons = set()
    for seed in SEEDS:
        run = Run(seed, options=options, calm=True)
        run.go()
        history = run.driver.service.coordinator.stats.snapshot().history
        reasons |= {one.full_reason for one in history if one.full}
    assert any(reason and reason.startswith("chain of") for reason in reasons), reasons
