from __future__ import annotations

import pytest

from headgate.records.types import Types, as_type
from headgate.state.schema import Verdict, compare_types


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        # SPEC R8.6
        ("bigint", "bigint", Verdict.AS_IS),
        (None, None, Verdict.AS_IS),
        ("a int, b string", "b string, a int", Verdict.WITH_RECONFIGURED_SERIALIZER),
        ("a int not null", "a int", Verdict.WITH_RECONFIGURED_SERIALIZER),
        ("a int", "a int, b string", Verdict.AFTER_MIGRATION),
        ("a int, b string", "a int", Verdict.AFTER_MIGRATION),
        ("a int, b string", "b string, c double", Verdict.AFTER_MIGRATION),
        ("tinyint", "smallint", Verdict.AFTER_MIGRATION),
        ("int", "double", Verdict.AFTER_MIGRATION),
        ("float", "double", Verdict.AFTER_MIGRATION),
        ("decimal(10,2)", "decimal(12,3)", Verdict.AFTER_MIGRATION),
        ("bigint", "int", Verdict.INCOMPATIBLE),
        ("bigint", "double", Verdict.INCOMPATIBLE),  # 2**53 + 1 would change
        ("int", "float", Verdict.INCOMPATIBLE),
        ("decimal(10,2)", "decimal(10,3)", Verdict.INCOMPATIBLE),
        ("string", "binary", Verdict.INCOMPATIBLE),
        ("a int", "a int not null", Verdict.INCOMPATIBLE),
        ("a int", "a int, b string not null", Verdict.INCOMPATIBLE),
        ("a int", "int", Verdict.INCOMPATIBLE),
        ("array<int>", "array<bigint>", Verdict.INCOMPATIBLE),
        ("bigint", None, Verdict.INCOMPATIBLE),
        (Types.TUPLE([Types.INT()]), Types.TUPLE([Types.LONG()]), Verdict.AFTER_MIGRATION),
        (Types.TUPLE([Types.INT()]), Types.TUPLE([Types.INT(), Types.INT()]), Verdict.INCOMPATIBLE),
        (Types.TUPLE([Types.INT()]), Types.ROW([Types.INT()]), Verdict.INCOMPATIBLE),
    ],
)
def test_verdicts(old, new, verdict):
    found = compare_types(as_type(old), as_type(new))
    assert found.verdict is verdict
    assert bool(found.reason) is (verdict is Verdict.INCOMPATIBLE)
