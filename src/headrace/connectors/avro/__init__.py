"""Avro: the binary encoding of records by a schema, and files of them. Needs the extra `avro` (fastavro).

Values are those of Python: a record is a dict (or a Row or tuple, to write), dates and times are datetime's, a decimal is a
Decimal. fastavro parses schemas, and reads and writes the bytes. Headrace adds what the specification says about values:
schema resolution, branches of unions, logical types and ranges.

schemas.py   schemas as fastavro parses them, their defaults and columns
logical.py   Python values of logical types
reading.py   the schema with which fastavro reads what another schema has written
writing.py   Python values in the form that fastavro writes
codec.py     values to bytes and back
files.py     container files, and batches of records
"""

from __future__ import annotations

from headrace.connectors.avro.codec import AvroCodec
from headrace.connectors.avro.files import AvroFormat

__all__ = ["AvroCodec", "AvroFormat"]
