"""Stand-ins for the Java side of PyFlink's tests of Avro; see pyflink_tests.py. They write and read files with Headrace's codec."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import fastavro

from headrace.connectors.avro import AvroFormat
from headrace.connectors.files.formats import FilePart
from headrace.connectors.files.targets import PendingFile
from headrace.pyflink.datastream.formats.avro import AvroSchema
from headrace.records.batch import Batch


class JavaAvroSchema:
    """The JSON of an Avro schema, with Java's methods."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def getField(self, name: str) -> Any:
        field = next(one for one in self.found["fields"] if one["name"] == name)
        return types.SimpleNamespace(schema=lambda: JavaAvroSchema(field["type"]))

    def getElementType(self) -> JavaAvroSchema:
        return JavaAvroSchema(self.found["items"])


class JavaRecord(dict[str, Any]):
    def __init__(self, schema: JavaAvroSchema) -> None:
        super().__init__({field["name"]: None for field in schema.found["fields"]})

    def put(self, name: str, value: Any) -> None:
        self[name] = value


class JavaMap(dict[str, Any]):
    put = dict.__setitem__


class JavaList(list[Any]):
    add = list.append


class _File(PendingFile):
    def __init__(self, path: str) -> None:
        self._file = Path(path).open("wb")

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def finish(self) -> Any:
        self._file.close()

    def abort(self) -> None:
        self._file.close()


class JavaFileWriter:
    """Writes an Avro file."""

    def __init__(self, datum_writer: Any) -> None:
        self._rows: list[Any] = []

    def create(self, schema: JavaAvroSchema, path: str) -> None:
        self._writer = AvroFormat(schema.found).writer(_File(path), Batch.of_rows([]).type)

    def append(self, row: Any) -> None:
        self._writer.write(Batch.of_rows([row]))

    def close(self) -> None:
        self._writer.finish()


class DataFileReader:
    """Of the package avro: iterates over the records of a file."""

    def __init__(self, file: Any, datum_reader: Any) -> None:
        schema = json.loads(fastavro.reader(file).metadata["avro.schema"])
        file.seek(0)
        self._reader = AvroFormat(schema, typed=False).reader(FilePart("", 0, None, 0, None), file)

    def __iter__(self) -> Any:
        while not self._reader.finished:
            yield from self._reader.read(100)[0].rows()


CLASSES = {
    "io.File": str,
    "generic.GenericDatumWriter": lambda: None,
    "file.DataFileWriter": JavaFileWriter,
    "GenericData.Record": JavaRecord,
    "GenericData.EnumSymbol": lambda schema, symbol: symbol,
    "util.ArrayList": JavaList,
    "util.HashMap": JavaMap,
}
"""What calls of Java's classes make, by the end of their path."""


def install(module: Any) -> None:
    """`module` makes a module of stand-ins."""
    AvroSchema._j_schema = property(lambda schema: JavaAvroSchema(json.loads(schema.text)))
    wrapped = AvroSchema.__init__
    AvroSchema.__init__ = lambda self, schema: wrapped(
        self, json.dumps(schema.found) if isinstance(schema, JavaAvroSchema) else schema
    )
    module("py4j.java_gateway", java_import=lambda jvm, name: None, JavaObject=object, get_java_class=lambda kind: kind)
    for name, value in {"io": {"DatumReader": object}, "datafile": {"DataFileReader": DataFileReader}}.items():
        made = types.ModuleType(f"avro.{name}")
        vars(made).update(value)
        sys.modules.setdefault("avro", types.ModuleType("avro"))
        sys.modules.setdefault(f"avro.{name}", made)
