"""Files as source and as sink, on local or mounted directories and on object stores.

>>> from headrace.connectors.files import FileSink, FileSource
>>> FileSource("/data/in", "json", "word string, n bigint").name
"FileSource('/data/in')"
"""

from headrace.connectors.files.formats import FileFormat
from headrace.connectors.files.sink import FileSink, TimeBuckets
from headrace.connectors.files.source import FileSource
from headrace.connectors.values import CORRUPT_TYPE

__all__ = ["CORRUPT_TYPE", "FileFormat", "FileSink", "FileSource", "TimeBuckets"]
