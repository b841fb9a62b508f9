from __future__ import annotations

import pytest

from headrace.records.types import Types, as_type
from headrace.state.schema import TypeChange, compare_types


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        # SPEC R8.6
        ("bigint", "bigint", TypeChange.AS_IS),
        (None, None, TypeChange.AS_IS),
        ("a int, b string", "b string, a int", TypeChange.WITH_RECONFIGURED_SERIALIZER),
        ("a int not null", "a int", TypeChange.WITH_RECONFIGURED_SERIALIZER),
        ("a int", "a int, b string", TypeChange.AFTER_MIGRATION),
        ("a int, b string", "a int", TypeChange.AFTER_MIGRATION),
        ("a int, b string", "b string, c double", TypeChange.AFTER_MIGRATION),
        ("tinyint", "smallint", TypeChange.AFTER_MIGRATION),
        ("int", "double", TypeChange.AFTER_MIGRATION),
        ("float", "double", TypeChange.AFTER_MIGRATION),
        ("decimal(10,2)", "decimal(12,3)", TypeChange.AFTER_MIGRATION),
        ("bigint", "int", TypeChange.INCOMPATIBLE),
        ("bigint", "double", TypeChange.INCOMPATIBLE),  # 2**53 + 1 would change
        ("int", "float", TypeChange.INCOMPATIBLE),
        ("decimal(10,2)", "decimal(10,3)", TypeChange.INCOMPATIBLE),
        ("string", "binary", TypeChange.INCOMPATIBLE),
        ("a int", "a int not null", TypeChange.INCOMPATIBLE),
        ("a int", "a int, b string not null", TypeChange.INCOMPATIBLE),
        ("a int", "int", TypeChange.INCOMPATIBLE),
        ("array<int>", "array<bigint>", TypeChange.INCOMPATIBLE),
        ("bigint", None, TypeChange.INCOMPATIBLE),
        (Types.TUPLE([Types.INT()]), Types.TUPLE([Types.LONG()]), TypeChange.AFTER_MIGRATION),
        (Types.TUPLE([Types.INT()]), Types.TUPLE([Types.INT(), Types.INT()]), TypeChange.INCOMPATIBLE),
        (Types.TUPLE([Types.INT()]), Types.ROW([Types.INT()]), TypeChange.INCOMPATIBLE),
    ],
)
def test_changes(old, new, change):
    found = compare_types(as_type(old), as_type(new))
    assert found.change is change
    assert bool(found.reason) is (change is TypeChange.INCOMPATIBLE)
