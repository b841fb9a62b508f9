"""Sources whose watermarks are aligned: who pauses, and that nobody waits without end."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.job.watermark_alignment import WatermarkAligner

GROUPS = {"a": ("g", 10), "b": ("g", 10), "c": ("g", 3), "x": ("other", 0), "alone": None}


def aligner():
    return WatermarkAligner(GROUPS.get)


def test_who_is_too_far_ahead_of_the_slowest_pauses_until_it_has_caught_up():
    one = aligner()
    assert one.on_watermark("a", 100) == {}
    assert one.on_watermark("b", 111) == {"b": True}
    assert one.on_watermark("a", 101) == {"b": False}


def test_groups_and_tasks_without_one_do_not_matter_to_each_other():
    one = aligner()
    assert one.on_watermark("x", 0) == {}
    assert one.on_watermark("a", 1000) == {}
    assert one.on_watermark("alone", 5000) == {}


def test_a_task_that_is_idle_or_has_finished_is_not_waited_for():
    one = aligner()
    one.on_watermark("a", 0)
    assert one.on_watermark("b", 50) == {"b": True}
    assert one.on_watermark("a", None) == {"b": False}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 50))))
def test_the_slowest_never_pauses_and_every_other_one_does_that_is_too_far_ahead(steps):
    one, marks, held = aligner(), {}, set()
    for task, mark in steps:
        marks.pop(task, None)
        if mark is not None:
            marks[task] = mark
        for other, hold in one.on_watermark(task, mark).items():
            assert hold is not (other in held)
            (held.add if hold else held.discard)(other)
        least = min(marks.values(), default=0)
        assert held == {t for t, m in marks.items() if m > least + GROUPS[t][1]}
