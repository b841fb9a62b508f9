"""The pacing of output under arbitrary steps, pauses and clocks: no record waits too long, and no row leaves too often."""

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from effort import examples
from headrace.worker.output_pacing import MAX_PAUSE, OutputPacing

TIMEOUTS = st.sampled_from([-1, 0, 1, 2, 40, 100, 10_000])


class PacingMachine(RuleBasedStateMachine):
    """A subtask of which only the times count; it wakes up at its deadlines, and its clock is set back now and then."""

    @initialize(timeout=TIMEOUTS, gathers=st.booleans(), now=st.integers(0, 1 << 41))
    def begin(self, timeout, gathers, now):
        self.timeout, self.now = timeout, now
        self.pacing = OutputPacing(timeout, gathers)
        self.pause = 0 if not gathers else MAX_PAUSE if timeout < 0 else min(MAX_PAUSE, timeout * 9 // 20)
        self.waits = self.polled = False  # records are in buffers; some of them are from the source
        self.left_at = None  # when the newest row left

    def flush(self):
        self.pacing.flushed(self.now)
        self.waits = self.polled = False
        self.left_at = self.now

    @rule()
    def process(self):
        self.waits = True
        if self.pacing.flushes_after_step(self.now):
            self.flush()
        elif self.timeout > 0:
            assert self.now < self.pacing.flush_at <= self.now + self.timeout

    @precondition(lambda self: self.pacing.may_poll(self.now))
    @rule(records=st.integers(0, 2), drained=st.booleans())
    def poll(self, records, drained):
        self.pacing.polled(self.now, records, drained)
        assert drained or self.pacing.poll_at is None
        if records:
            self.polled = True
            self.process()

    @rule()
    def be_idle(self):
        """Records wait at most for a pause that began with the newest row; a source that gathers has waited already."""
        if not self.waits:
            return
        pausing = self.left_at is not None and self.left_at <= self.now < self.left_at + self.pause
        leaves = self.pacing.flushes_when_idle(self.now)
        assert leaves == (self.timeout >= 0 and (self.polled or not pausing))
        if leaves:
            self.flush()
        elif self.timeout >= 0:
            assert self.now < self.pacing.flush_at <= self.left_at + self.pause

    @rule()
    def send_barrier(self):
        self.pacing.barrier_sent()
        self.waits = False
        assert self.pacing.flush_at is None

    @rule(ms=st.integers(0, 200))
    def pass_time(self, ms):
        target = self.now + ms
        while self.pacing.flush_at is not None and self.pacing.flush_at <= target:
            self.now = max(self.now, self.pacing.flush_at)
            assert self.pacing.is_flush_due(self.now)
            self.flush()
        self.now = target

    @rule(ms=st.integers(1, 1 << 30))
    def set_the_clock_back(self, ms):
        self.now = max(0, self.now - ms)

    @invariant()
    def records_that_wait_have_a_deadline_if_there_is_a_timeout(self):
        if self.timeout > 0:
            assert self.waits <= (self.pacing.flush_at is not None)
        else:
            assert self.pacing.flush_at is None
            assert not self.waits or self.timeout < 0

    @invariant()
    def a_source_waits_at_most_a_pause_and_until_the_same_times_in_all_subtasks(self):
        if not self.pacing.may_poll(self.now):
            assert 0 < self.pacing.poll_at - self.now <= self.pause
            assert self.pacing.poll_at % self.pause == 0
            assert self.pacing.next_poll(self.now) == self.pacing.next_poll(None) == self.pacing.poll_at


PacingMachine.TestCase.settings = hypothesis_settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, derandomize=True
)
test_pacing_of_output = PacingMachine.TestCase
