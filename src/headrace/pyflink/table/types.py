"""`pyflink.table.types`: DataTypes, as formats of the DataStream API take them; each is a TypeInformation here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.pyflink.common.typeinfo import Types
from headrace.records.types import TypeInformation, as_type

__all__ = ["DataTypes"]


@dataclass(frozen=True)
class RowField:
    """A named field of a row."""

    name: str
    data_type: TypeInformation


class DataTypes:
    """Types of the Table API.

    >>> DataTypes.ROW(
    ...     [DataTypes.FIELD("id", DataTypes.INT()), DataTypes.FIELD("tags", DataTypes.ARRAY(DataTypes.STRING()))]
    ... )
    row<id int, tags list<item: string>>
    """

    @staticmethod
    def STRING(nullable: bool = True) -> TypeInformation:
        return Types.STRING()

    @staticmethod
    def CHAR(length: int, nullable: bool = True) -> TypeInformation:
        return Types.STRING()

    @staticmethod
    def VARCHAR(length: int, nullable: bool = True) -> TypeInformation:
        return Types.STRING()

    @staticmethod
    def BOOLEAN(nullable: bool = True) -> TypeInformation:
        return Types.BOOLEAN()

    @staticmethod
    def TINYINT(nullable: bool = True) -> TypeInformation:
        return Types.BYTE()

    @staticmethod
    def SMALLINT(nullable: bool = True) -> TypeInformation:
        return Types.SHORT()

    @staticmethod
    def INT(nullable: bool = True) -> TypeInformation:
        return Types.INT()

    @staticmethod
    def BIGINT(nullable: bool = True) -> TypeInformation:
        return Types.LONG()

    @staticmethod
    def FLOAT(nullable: bool = True) -> TypeInformation:
        return Types.FLOAT()

    @staticmethod
    def DOUBLE(nullable: bool = True) -> TypeInformation:
        return Types.DOUBLE()

    @staticmethod
    def DECIMAL(precision: int, scale: int, nullable: bool = True) -> TypeInformation:
        return as_type(pa.decimal128(precision, scale))

    @staticmethod
    def BYTES(nullable: bool = True) -> TypeInformation:
        return as_type(pa.binary())

    @staticmethod
    def BINARY(length: int, nullable: bool = True) -> TypeInformation:
        return as_type(pa.binary())

    @staticmethod
    def VARBINARY(length: int, nullable: bool = True) -> TypeInformation:
        return as_type(pa.binary())

    @staticmethod
    def DATE(nullable: bool = True) -> TypeInformation:
        return Types.SQL_DATE()

    @staticmethod
    def TIME(precision: int = 0, nullable: bool = True) -> TypeInformation:
        return Types.SQL_TIME()

    @staticmethod
    def TIMESTAMP(precision: int = 6, nullable: bool = True) -> TypeInformation:
        return Types.SQL_TIMESTAMP()

    @staticmethod
    def TIMESTAMP_LTZ(precision: int = 6, nullable: bool = True) -> TypeInformation:
        return Types.INSTANT()

    @staticmethod
    def ARRAY(element_type: TypeInformation, nullable: bool = True) -> TypeInformation:
        return Types.LIST(element_type)

    @staticmethod
    def MAP(key_type: TypeInformation, value_type: TypeInformation, nullable: bool = True) -> TypeInformation:
        return Types.MAP(key_type, value_type)

    @staticmethod
    def FIELD(name: str, data_type: TypeInformation, description: str | None = None) -> RowField:
        return RowField(name, data_type)

    @staticmethod
    def ROW(row_fields: Sequence[RowField] = (), nullable: bool = True) -> TypeInformation:
        return Types.ROW_NAMED([field.name for field in row_fields], [field.data_type for field in row_fields])
