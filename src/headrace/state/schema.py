"""Compatibility of stored state with the types that a program now declares (SPEC R8.6, R7.3).

    AS_IS                         the types are the same
    WITH_RECONFIGURED_SERIALIZER  the stored form stays, only reading differs: fields in another order, or now nullable
    AFTER_MIGRATION               values change: fields added (null) or removed, numbers widened
    INCOMPATIBLE                  refused; the error names the field and both schemas

Keys never evolve. Pickled state is opaque: it is compatible with pickled state only, and refused when a class that it
needs cannot be found.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.checkpoint.handles import StateMeta
from headrace.errors import IllegalState, StateMigrationError
from headrace.records.types import TypeInformation, form_of


class TypeChange(enum.Enum):
    """The relation of a stored type to the declared one: Flink's TypeSerializerSchemaCompatibility."""

    AS_IS = "as is"
    WITH_RECONFIGURED_SERIALIZER = "with reconfigured serializer"
    AFTER_MIGRATION = "after migration"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The change of a type, and why it is refused if it is."""

    change: TypeChange
    reason: str = ""


_AS_IS = Compatibility(TypeChange.AS_IS)
_RECONFIGURED = Compatibility(TypeChange.WITH_RECONFIGURED_SERIALIZER)
_MIGRATED = Compatibility(TypeChange.AFTER_MIGRATION)

_INTS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
# The types whose values a type holds exactly.
_NARROWER = {type: _INTS[:at] for at, type in enumerate(_INTS)}
_NARROWER |= {pa.float32(): _INTS[:2], pa.float64(): [*_INTS[:3], pa.float32()]}


def compare_types(old: TypeInformation, new: TypeInformation) -> Compatibility:
    """Return True if values stored as `old` can be read as `new`.

    >>> from headrace.records.types import as_type
    >>> compare_types(as_type("a int"), as_type("a bigint, b string")).change
    <TypeChange.AFTER_MIGRATION: 'after migration'>
    """
    if old == new:
        return _AS_IS
    if old.schema is None or new.schema is None:
        return Compatibility(TypeChange.INCOMPATIBLE, "pickled and typed state cannot be read as each other")
    if old.kind != new.kind:
        return Compatibility(TypeChange.INCOMPATIBLE, f"a {old.kind} cannot become a {new.kind}")
    if old.kind == "row":
        return _compare_rows(old.schema, new.schema)
    before, now = len(old.schema), len(new.schema)
    if before != now:
        return Compatibility(TypeChange.INCOMPATIBLE, f"a tuple of {before} fields cannot become one of {now}")
    return _worst([_compare_fields(a, b) for a, b in zip(old.schema, new.schema, strict=True)])


def _compare_rows(old: pa.Schema, new: pa.Schema) -> Compatibility:
    found = [] if old.names == new.names else [_RECONFIGURED]
    for field in new:
        if field.name in old.names:
            found.append(_compare_fields(old.field(field.name), field))
        elif field.nullable:
            found.append(_MIGRATED)
        else:
            reason = f"field '{field.name}' is new and NOT NULL, so stored rows have no value for it"
            found.append(Compatibility(TypeChange.INCOMPATIBLE, reason))
    if set(old.names) - set(new.names):
        found.append(_MIGRATED)
    return _worst(found)


def _compare_fields(old: pa.Field, new: pa.Field) -> Compatibility:
    if old.nullable and not new.nullable:
        return Compatibility(TypeChange.INCOMPATIBLE, f"field '{new.name}' was nullable and is now NOT NULL")
    if _stored_form(old) != _stored_form(new):
        was, now = _stored_form(old) or old.type, _stored_form(new) or new.type
        return Compatibility(TypeChange.INCOMPATIBLE, f"field '{new.name}' changed from {was} to {now}")
    if old.type == new.type:
        return _AS_IS if old.nullable == new.nullable else _RECONFIGURED
    if _widens(old.type, new.type):
        return _MIGRATED
    return Compatibility(TypeChange.INCOMPATIBLE, f"field '{new.name}' changed from {old.type} to {new.type}")


def _stored_form(field: pa.Field) -> str:
    """Return the meaning of a column's bytes where the Arrow type does not give it."""
    form = form_of(field)
    return "" if form in ("tuple", "mutable") else form


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Return True if every value of the old type is exactly one of the new."""
    if new in _NARROWER:
        return old in _NARROWER[new]
    if pa.types.is_decimal128(old) and pa.types.is_decimal128(new):
        return bool(old.scale <= new.scale and old.precision - old.scale <= new.precision - new.scale)
    return False


def _worst(found: list[Compatibility]) -> Compatibility:
    return max(found, key=lambda one: list(TypeChange).index(one.change), default=_AS_IS)


def migrate_batch(batch: pa.RecordBatch, new: TypeInformation) -> pa.RecordBatch:
    """Columns of a compatible older type as columns of the new one."""
    assert new.schema is not None
    by_position = new.kind != "row"
    columns: list[Any] = []
    for index, field in enumerate(new.schema):
        if by_position:
            columns.append(batch.column(index).cast(field.type))
        elif field.name in batch.schema.names:
            columns.append(batch.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=new.schema)


def check_key_type(operator: str, stored: TypeInformation, now: TypeInformation) -> None:
    """Raise StateMigrationError unless keys have the type that they were stored with."""
    if compare_types(stored, now).change is not TypeChange.AS_IS:
        raise StateMigrationError(
            "HR-2101",
            f"operator '{operator}': keys were stored as {stored} and are now {now}; keys never evolve, because their "
            "hash decides where state lives: keep the old key type, or rewrite the savepoint",
        )


def check_state(operator: str, stored: StateMeta, now: StateMeta, *, migrate_ttl: bool) -> TypeChange:
    """Return the change of a state that is registered under a restored name; raises if it is refused."""
    where = f"operator '{operator}', state '{now.name}'"
    if stored.kind != now.kind:
        raise IllegalState(
            "HR-2007",
            f"Incompatible key/value state types: {where} was stored as {stored.kind} state and is now requested as "
            f"{now.kind} state; use another name for the new state",
        )
    if stored.ttl != now.ttl and not migrate_ttl:
        was, is_now = ("with", "without") if stored.ttl else ("without", "with")
        raise StateMigrationError(
            "HR-2101",
            f"{where}: was stored {was} a time to live and is now declared {is_now}; declare it as before, "
            "or allow the change with headrace.state.ttl-migration.enabled",
        )
    if stored.map_key_type is not None and now.map_key_type is not None:
        old_key, new_key = stored.map_key_type.type_info(), now.map_key_type.type_info()
        if compare_types(old_key, new_key).change is not TypeChange.AS_IS:
            raise StateMigrationError(
                "HR-2101", f"{where}: map keys were stored as {old_key} and are now {new_key}; keys never evolve"
            )
    old, new = stored.value_type.type_info(), now.value_type.type_info()
    found = compare_types(old, new)
    if found.change is TypeChange.INCOMPATIBLE:
        raise StateMigrationError(
            "HR-2101",
            f"{where}: {found.reason}; stored as {old}, declared as {new}. "
            "Keep the old type, or use another name for the new state",
        )
    return TypeChange.AFTER_MIGRATION if stored.ttl != now.ttl else found.change


def widest_form(operator: str, stored: Sequence[StateMeta]) -> StateMeta:
    """Of the forms in which subtasks have stored a state, the one that holds all that the others hold.

    Subtasks that have not opened a state since its type changed keep the old form.
    """
    for one in stored:
        if all(_holds(one, other) for other in stored):
            return one
    forms = " and as ".join(map(_form_text, stored))
    raise IllegalState(
        "HR-2108",
        f"operator '{operator}', state '{stored[0].name}': subtasks have stored it as {forms}, of which none holds the "
        "others, and no function has opened it since: run the program until it does, and take a checkpoint or savepoint "
        "then; one with --format NATIVE holds all forms",
    )


def _form_text(form: StateMeta) -> str:
    keys = "" if form.map_key_type is None else f"{form.map_key_type.type_info()} -> "
    return f"{form.kind} state of {keys}{form.value_type.type_info()}{' with a time to live' if form.ttl else ''}"


def _holds(form: StateMeta, other: StateMeta) -> bool:
    """Return True if all of another form's values can be read as this form, and nothing is lost."""
    try:
        check_state("", other, form, migrate_ttl=True)
    except (IllegalState, StateMigrationError):
        return False
    mine, others = (one.value_type.type_info().schema for one in (form, other))
    dropped = mine is not None and others is not None and set(others.names) - set(mine.names)
    return not dropped and form.ttl >= other.ttl
