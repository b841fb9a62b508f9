"""Files as source and as sink, on local or mounted directories and on object stores.

>>> from headgate.connectors.files import FileSink, FileSource
>>> FileSource("/data/in", "json", "word string, n bigint").name
"FileSource('/data/in')"
"""

from headgate.connectors.files.formats import FileFormat
from headgate.connectors.files.sink import FileSink, TimeBuckets
from headgate.connectors.files.source import FileSource
from headgate.connectors.values import CORRUPT_TYPE

__all__ = ["CORRUPT_TYPE", "FileFormat", "FileSink", "FileSource", "TimeBuckets"]
