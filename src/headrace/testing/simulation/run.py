"""One simulated run: everything that happens in it is drawn from its seed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from headrace import config
from headrace.checkpoint.settings import EndStatus
from headrace.config import Configuration, Option
from headrace.control.messages import AcknowledgeCheckpoint, AssignSplits, DeclineCheckpoint, Pause, StartProcessing
from headrace.environment import StreamExecutionEnvironment
from headrace.errors import StorageError, WorkerLost
from headrace.graph.plan import JobPlan
from headrace.ids import JobId
from headrace.job.status import JobStatus, Status
from headrace.testing.simulation.cluster import Attempt, Driver, SimulatedIo, Worker
from headrace.testing.simulation.oracle import Oracle, check_story
from headrace.testing.simulation.timed import TIMED
from headrace.testing.simulation.world import PROGRAMS, Program, Violation, World, worlds
from headrace.testing.storage_faults import Fault, FaultKind, FaultyStore, Operation

_MAX_ACTIONS = 20_000
_FAULTS_UNTIL = 2_500  # actions; behind them a run must come to its end
_ZOMBIE_ACTIONS = 400
_START_TRIES = 50
_KEY_GROUPS = 32
_TIMED_SHARE = 0.3
_MODES: dict[str, dict[Option[Any], str]] = {
    "aligned": {},
    "unaligned": {config.UNALIGNED: "true"},
    "timeout": {config.UNALIGNED: "true", config.ALIGNED_TIMEOUT: "15 ms"},
    "at-least-once": {config.CHECKPOINT_MODE: "AT_LEAST_ONCE"},
}


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    seed: int
    mode: str
    program: str
    actions: int = 0
    completed: int = 0
    restarts: int = 0
    drivers: int = 1
    faults: int = 0
    refused: str | None = None  # a damaged checkpoint was refused, loudly, as it must be
    trace: list[str] = field(default_factory=list)


_RATES: dict[str, tuple[float, ...]] = {  # how often things go wrong, per action
    "kill": (0, 0.001, 0.004),
    "driver": (0, 0.0005, 0.002),
    "rescale": (0, 0, 0.001),
    "drop": (0, 0.02, 0.1),
    "storage": (0, 0.003, 0.02),
    "flip": (0, 0, 0, 0.001),
}


class Run:
    """The state of a run; `go` plays it to its end."""

    def __init__(
        self,
        seed: int,
        keep_trace: bool = False,
        options: Mapping[str, str] | None = None,
        calm: bool = False,
        program: Program | None = None,
        parallelism: Sequence[int] = (),
    ) -> None:
        """`options`, `program` and the `parallelism` of one driver after the other replace what is drawn.

        In a `calm` run nothing goes wrong by itself.
        """
        self.random = random = Random(seed)
        self.name = f"run-{seed}"
        mode, drawn = random.choice(list(_MODES)), random.choice(PROGRAMS[:-1])
        # Some programs are drawn aside, so that a seed without them is the run that it always was.
        of_time = Random(f"time of {seed}")
        if of_time.random() < _TIMED_SHARE:
            drawn = of_time.choice(list(TIMED))
        elif Random(f"last {seed}").random() < 1 / 7:
            drawn = PROGRAMS[-1]
        program = program or drawn
        self._parallelism = list(parallelism)
        self.outcome = Outcome(seed, mode, program.__name__)
        self._keep_trace = keep_trace
        self.time = 1_000
        self.max_actions = _MAX_ACTIONS
        self.store = FaultyStore(delay=self._slow)
        worlds[self.name] = World()
        self._options = self._draw_options(mode) | dict(options or {})
        self._options.setdefault(config.AUTO_WATERMARK_INTERVAL, of_time.choice(["1 ms", "20 ms", "100 ms"]))
        configuration = Configuration(self._options)
        records = random.randrange(30, 400)
        self._program, self._records = program, records
        self.oracle = Oracle(self.name, configuration, self.store, records, TIMED.get(program))
        drawn_rates = {what: random.choice(rates) for what, rates in _RATES.items()}
        self.rates: dict[str, float] = dict.fromkeys(_RATES, 0.0) if calm else drawn_rates
        self.flipped = False
        self.zombies: list[tuple[Driver | None, Attempt | None, int]] = []
        self._checked: set[tuple[int, int]] = set()
        self._beside, self._calm = Random(f"beside {seed}"), calm
        self.driver = self._start_driver(resume=False)

    def _draw_options(self, mode: str) -> dict[Option[Any], str]:
        random = self.random
        tolerable = random.choice(["0", "3", "1000", "1000"])
        options: dict[Option[Any], str] = {
            config.CHECKPOINT_INTERVAL: f"{random.randrange(10, 60)} ms",
            config.CHECKPOINT_TIMEOUT: f"{4000 if tolerable == '0' else random.choice([300, 1000, 4000])} ms",
            config.CHECKPOINT_DIR: "file:///simulated",
            config.CHECKPOINT_NUM_RETAINED: str(random.randrange(1, 4)),
            config.CHECKPOINT_INCREMENTAL: random.choice(["true", "false"]),
            config.CHECKPOINT_TOLERABLE_FAILURES: tolerable,
            config.CHECKPOINT_INLINE_THRESHOLD: random.choice(["0 b", "20 kb"]),
            config.CHECKPOINT_MAX_CONCURRENT: "1" if mode in ("unaligned", "timeout") else random.choice("123"),
            config.ASYNC_SNAPSHOTS: random.choice(["true", "true", "false"]),
            config.ALIGNMENT_MEMORY: random.choice(["0 b", "60 b", "16 mb"]),
            config.ALIGNMENT_SOFT: random.choice(["40 b", "200 b", "64 mb"]),
            config.ALIGNMENT_LIMIT: random.choice(["400 b", "1 gb", "1 gb", "1 gb"]),
            config.BUFFER_SIZE: f"{random.choice([1, 100, 400])} b",
            config.BUFFER_TIMEOUT: f"{random.choice([0, 5, 20])} ms",
        }
        return options | _MODES[mode]

    def _draw_plan(self) -> JobPlan:
        """Return the program with some parallelism: a job that is resumed may have another one."""
        env = StreamExecutionEnvironment.get_execution_environment(Configuration(self._options))
        drawn = self.random.randrange(1, 4)
        env.set_parallelism(self._parallelism.pop(0) if self._parallelism else drawn).set_max_parallelism(_KEY_GROUPS)
        self._program(env, self.name, self._records)
        return env._job_plan("simulated")

    # --- the run ----------------------------------------------------------------------------------------------------

    def go(self) -> Outcome:
        """To the end of the job; Violation if something happens that must not."""
        try:
            while not self.driver.ended:
                self.outcome.actions += 1
                if self.outcome.actions > self.max_actions:
                    raise Violation(f"the job has not ended after {self.max_actions} actions")
                if self.outcome.actions < _FAULTS_UNTIL:
                    self._go_wrong()
                elif self.outcome.actions == _FAULTS_UNTIL:
                    self.store.heal()
                if not self.driver.ended:
                    self.act()
                self._check()
            self._end_zombies(all_of_them=True)
            self._check_outcome()
        finally:
            del worlds[self.name]
        return self.outcome

    def _check_outcome(self) -> None:
        """The job has finished, or it was refused because a byte was flipped and output would be repeated."""
        check_story(self.driver.machine)
        error = str(self.driver.machine.error)
        self.outcome.restarts += self.driver.machine.restarts
        if self.driver.machine.status is JobStatus.FINISHED or "is FINISHED and has retained no checkpoint" in error:
            self.oracle.check_end()  # a driver that was replaced may have finished the job just before
        elif self.flipped and "damaged" in error.lower():
            self.outcome.refused = error
        else:
            raise Violation(f"the job is {self.driver.machine.status.name}: {error}")

    def _check(self) -> None:
        world = worlds[self.name]
        if world.violations:
            raise Violation(world.violations[0])
        driver = self.driver
        if self.flipped:
            return
        if driver.completed and (self.outcome.drivers, driver.completed[-1]) not in self._checked:
            newest, snapshot = self.oracle.check_kept(driver)[-1]
            self._checked.add((self.outcome.drivers, newest))
            self.outcome.completed += 1
            self.note(f"checkpoint {newest} is complete")
            self.oracle.check_checkpoint(driver, newest, snapshot)

    def note(self, text: str) -> None:
        """Add a line to the trace of the run."""
        if self._keep_trace:
            self.outcome.trace.append(f"{self.outcome.actions:6} {self.time:6} ms  {text}")

    # --- what can happen --------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Let one thing happen."""
        self._end_zombies()
        actions = [
            action
            for driver, attempt in self._actors()
            for action in self._driver_actions(driver) + self._attempt_actions(attempt, driver)
        ]
        workers = 1 if self.driver.attempt is None else len(self.driver.attempt.workers)
        self.time += self.random.random() < min(0.5, 3 / workers)
        if actions and self.random.random() > 0.03:
            self.random.choice(actions)()
        else:
            self._pass_time(jump=not actions)
        for attempt in self.driver.cluster.abandoned:
            if self.random.random() < 0.6:
                self.zombies.append((None, attempt, _ZOMBIE_ACTIONS))
        self.driver.cluster.abandoned.clear()

    def _actors(self) -> list[tuple[Driver | None, Attempt | None]]:
        """All drivers with their attempts: the one that leads first, then what was replaced or abandoned."""
        return [(self.driver, self.driver.attempt), *((driver, attempt) for driver, attempt, _ in self.zombies)]

    def _driver_actions(self, driver: Driver | None) -> list[Callable[[], None]]:
        actions: list[Callable[[], None]] = []
        if driver is None or driver.ended:
            return actions
        if driver.events:
            actions.append(driver.take_event)
        pool, *in_order = driver.io.jobs
        if pool.waiting:
            actions.append(lambda: pool.run(self.random.randrange(len(pool.waiting))))
        actions += [jobs.run for jobs in in_order if jobs.waiting]
        if not driver.events and (alarm := driver.next_alarm()) is not None and alarm <= self.time:
            actions.append(driver.on_idle)
        return actions

    def _attempt_actions(self, attempt: Attempt | None, driver: Driver | None) -> list[Callable[[], None]]:
        """Return the possible actions of tasks; a task that meets a storage fault fails its attempt."""
        if attempt is None:
            return []
        actions = [action for worker in attempt.workers for action in self._worker_actions(attempt, worker, driver)]
        return [partial(self._guarded, action, attempt, driver) for action in actions]

    def _guarded(self, action: Callable[[], None], attempt: Attempt, driver: Driver | None) -> None:
        try:
            action()
        except StorageError as error:
            self.note(f"a task died: {error}")
            if driver is not None and driver.attempt is attempt:
                driver.cluster.end(WorkerLost(str(error)))
        if driver is not None:
            driver.cluster.end_if_finished()

    def _worker_actions(self, attempt: Attempt, worker: Worker, driver: Driver | None) -> list[Callable[[], None]]:
        actions: list[Callable[[], None]] = []
        if not worker.connected:  # it does nothing before it is accepted; one of an old attempt never is
            return [lambda: self._tell_driver(worker, attempt, driver)] if worker.messages else []
        if worker.task.has_work() and not worker.mailbox.paused:
            actions.append(lambda: attempt.step(worker, self.random.randrange(1, 8)))
        if worker.rows and worker.task.status is not Status.CREATED:
            actions.append(lambda: attempt.deliver(worker, self.random))
        if worker.writes.ready():
            actions.append(lambda: self._write(worker))
        if worker.inbox:
            actions.append(lambda: self._tell_worker(attempt, worker))
        if worker.messages:
            actions.append(lambda: self._tell_driver(worker, attempt, driver))
        return actions

    def _write(self, worker: Worker) -> None:
        worker.writes.run()
        worker.serve()

    def _tell_worker(self, attempt: Attempt, worker: Worker) -> None:
        reliable = Pause | AssignSplits | StartProcessing
        if not isinstance(worker.inbox[0], reliable) and self._faulty(self.rates["drop"]):
            self.note(f"lost on the way to worker {worker.key}: {type(worker.inbox.popleft()).__name__}")
        else:
            worker.hear()
            attempt.send_rows(worker)

    def _tell_driver(self, worker: Worker, attempt: Attempt, driver: Driver | None) -> None:
        if driver is None or driver.attempt is not attempt:
            worker.messages.popleft()  # of an old attempt: the control plane refuses it
            return
        message = worker.messages[0]
        if isinstance(message, AcknowledgeCheckpoint | DeclineCheckpoint) and self._faulty(self.rates["drop"]):
            self.note(f"lost on the way from worker {worker.key}: {type(worker.messages.popleft()).__name__}")
        else:
            driver.hear(worker)

    def _pass_time(self, jump: bool) -> None:
        """Let time pass, to the next deadline if nothing else can happen."""
        actors = self._actors()
        times = [driver.next_alarm() for driver, _ in actors if driver is not None and not driver.ended]
        times += [worker.task.next_deadline() for _, tasks in actors if tasks is not None for worker in tasks.workers]
        known = [time for time in times if time is not None]
        if jump:
            if not known:
                raise Violation("deadlock: nothing can happen, and nothing waits for a time")
            self.time = max(self.time, min(known))
        for driver, attempt in actors:
            if attempt is not None:
                self._guarded(partial(attempt.pass_time, self.time), attempt, driver)

    def _slow(self, milliseconds: int) -> None:
        self.time += milliseconds

    # --- faults -----------------------------------------------------------------------------------------------------

    def _faulty(self, rate: float) -> bool:
        return self.outcome.actions < _FAULTS_UNTIL and self.random.random() < rate

    def _go_wrong(self) -> None:
        random, rates = self.random, self.rates
        if random.random() < rates["storage"]:
            self._inject()
        if random.random() < rates["flip"]:
            self.flipped = True
            self.note("a byte of the next file will be flipped")
            self.store.inject(Fault(FaultKind.FLIP, random.randrange(1, 4), amount=random.randrange(1000)))
        if random.random() < rates["kill"]:
            self.note("a worker is killed")
            self.driver.cluster.end(WorkerLost("a worker was killed"))
        if random.random() < rates["rescale"]:
            self.rescale()
        if random.random() < rates["driver"]:
            self.replace_driver()

    def _inject(self) -> None:
        random = self.random
        kind = random.choice([FaultKind.FAIL, FaultKind.FAIL, FaultKind.TORN, FaultKind.LOST_REPLY, FaultKind.SLOW])
        operation = random.choice([Operation.WRITE, Operation.WRITE, Operation.READ, Operation.DELETE])
        within = random.choice(["", "", "_metadata", "/log/", "/shared/", "/chk-"])
        amount = {FaultKind.FAIL: random.choice([errno.EIO, errno.ENOSPC]), FaultKind.SLOW: random.randrange(300)}
        fault = Fault(kind, random.randrange(1, 4), operation, within, amount.get(kind, random.randrange(40)))
        self.outcome.faults += 1
        self.note(f"storage fault: {fault}")
        self.store.inject(fault)

    def restart(self, why: str) -> None:
        """Kill a worker; the job restarts before anything else happens."""
        self.note(f"restart: {why}")
        self.driver.cluster.end(WorkerLost(why))
        self._start(self.driver)

    def rescale(self) -> None:
        """Request another parallelism as a user; what runs already, or has not started, is refused."""
        if self.driver.service and not self.driver.ended:
            plan = self._draw_plan()
            self.note(f"rescale to {plan.layout.slots} tasks")
            self.driver.change_plan(plan)

    def _start(self, driver: Driver) -> None:
        """Let nothing but this driver act, until it runs tasks or has ended."""
        while driver.attempt is None and not driver.ended:
            if not driver.advance():
                if (alarm := driver.next_alarm()) is None:
                    raise Violation("deadlock: the driver waits for nothing")
                self.time = max(self.time, alarm)
                driver.on_idle()
            if self.random.random() < 0.01:
                self.store.heal()

    def replace_driver(self) -> None:
        """Replace the driver; it was killed, or continues beside its successor until it notices."""
        if not self.driver.service or self.driver.ended:
            return
        self.note("the driver is replaced")
        zombie = self.random.random() < 0.5
        if zombie or self.random.random() < 0.6:
            self.zombies.append((self.driver if zombie else None, self.driver.attempt, _ZOMBIE_ACTIONS))
        self.outcome.drivers += 1
        check_story(self.driver.machine)
        self.outcome.restarts += self.driver.machine.restarts
        self.driver = self._start_driver(resume=True, at_once=self.random.random() < 0.5)

    def _act_beside(self, operation: Operation, path: str) -> None:
        """Before a new driver claims the log, the one that was believed dead acts for a while."""
        if operation is not Operation.WRITE or "/log/" not in path:
            return
        self.store.before = None
        alive = [(driver, attempt) for driver, attempt, _ in self.zombies if driver is not None]
        for _ in range(self._beside.choice([0, 5, 50, 200])):
            actions = [
                action
                for driver, _ in alive
                for action in self._driver_actions(driver) + self._attempt_actions(driver.attempt, driver)
            ]
            if not actions:
                break
            self._beside.choice(actions)()
        self.store.before = self._act_beside

    def _end_zombies(self, all_of_them: bool = False) -> None:
        """Replaced drivers end, in a way that is drawn: they must not touch what their successor needs."""
        zombies, self.zombies = self.zombies, []
        for driver, attempt, left in zombies:
            # A driver that is cancelled before its successor has taken over deletes by right what the other would restore.
            stays = left > 0 or not self.driver.service
            if stays and not all_of_them and not (driver is not None and driver.ended):
                self.zombies.append((driver, driver.attempt if driver is not None else attempt, left - 1))
            elif driver is not None and not driver.ended:
                status = self.random.choice([EndStatus.FINISHED, EndStatus.CANCELED, EndStatus.FAILED])
                if status is not EndStatus.CANCELED and driver.service and driver.attempt is None:
                    self._start(driver)  # it waits for its restart: its tasks can end in a way only when they run
                self.note(f"a driver that was replaced ends: {status.name}")
                driver.end(status)
                if not self.flipped and self.driver.service and not self.driver.ended:
                    self.oracle.check_kept(self.driver)

    def _start_driver(self, resume: bool, at_once: bool = True) -> Driver:
        """Return a new process; it runs tasks when this returns, unless it is not started `at_once`."""
        configuration = Configuration(self._options | ({config.RESUME: "true"} if resume else {}))
        plan = self._draw_plan()
        io = SimulatedIo(lambda: self.time, self.store, Random(self.random.random()), self._retry_later)
        job_id = JobId(f"{self.random.getrandbits(128):032x}")
        driver = Driver(plan, job_id, configuration, io, self.store)
        if at_once:
            self.store.before = self._act_beside if resume and not self.flipped and not self._calm else None
            self._start(driver)
            self.store.before = None
        return driver

    def _retry_later(self) -> None:
        self.time += 500
        if self.random.random() < 0.2:
            self.store.heal()


def play(seed: int) -> tuple[Outcome, str | None]:
    """One seed: what it was like, and why it failed if it did.

    >>> play(7)[1] is None
    True
    """
    run = Run(seed)
    try:
        return run.go(), None
    except Exception as error:
        return run.outcome, f"{type(error).__name__}: {error}"
