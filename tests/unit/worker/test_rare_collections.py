"""The garbage collector during a slice of records: it waits, and the user's settings stay."""

import gc

import pytest

from headrace.worker.shell import rare_collections


@pytest.fixture(autouse=True)
def usual_threshold():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def collections():
    return sum(generation["collections"] for generation in gc.get_stats())


def test_objects_of_a_slice_are_not_looked_at_while_they_live():
    gc.set_threshold(100, 10, 10)
    gc.collect()
    before = collections()
    with rare_collections():
        records = [[n] for n in range(10_000)]
        del records
    assert collections() <= before + 1  # another thread of the tests may just cause one; it would be a hundred
    assert gc.get_threshold() == (100, 10, 10)
    garbage = [[n] for n in range(1_000)]
    assert collections() > before
    del garbage


def test_a_slice_that_makes_a_great_many_objects_is_collected():
    before = collections()
    with rare_collections():
        records = [[n] for n in range(200_000)]
    assert collections() > before
    del records


@pytest.mark.parametrize("threshold", [0, 1_000_000])
def test_a_collector_that_is_off_or_rare_stays_so(threshold):
    gc.set_threshold(threshold)
    with rare_collections():
        assert gc.get_threshold()[0] == threshold
    assert gc.get_threshold()[0] == threshold


def test_what_a_function_sets_stays():
    with rare_collections():
        gc.set_threshold(5_000)
    assert gc.get_threshold()[0] == 5_000


def test_an_error_leaves_the_usual_threshold():
    usual = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), rare_collections():
        _ = 1 / 0
    assert gc.get_threshold() == usual
