"""The rocksdb backend: keyed state in a local database, larger than memory."""

from headrace.state.rocksdb.backend import RocksDBBackend
from headrace.state.rocksdb.store import MemoryBudget

__all__ = ["MemoryBudget", "RocksDBBackend"]
