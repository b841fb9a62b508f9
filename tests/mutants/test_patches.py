"""Every mutant can still be planted, and names tests that exist; `make mutants` runs them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import mutants


@pytest.mark.parametrize("mutant", mutants.mutants(), ids=lambda mutant: mutant.path.stem)
def test_the_patch_applies_and_its_tests_exist(mutant, tmp_path):
    assert mutant.plant(tmp_path) is None
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (mutants.ROOT / path).read_text()


def test_a_header_without_a_test_is_refused(tmp_path):
    path = tmp_path / "one.patch"
    path.write_text("Defect: something\n--- a/src/x.py\n")
    with pytest.raises(ValueError, match=r"one\.patch: the header needs one line 'Defect: \.\.\.' and at least one"):
        mutants.Mutant.read(path)
    path.write_text("Defekt: something\n--- a/src/x.py\n")
    with pytest.raises(ValueError, match=r"lines 'Defect: \.\.\.' and 'Test: \.\.\.' only, got 'Defekt: something'"):
        mutants.Mutant.read(path)
