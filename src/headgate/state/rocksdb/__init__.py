"""The rocksdb backend: keyed state in a local database, larger than memory."""

from headgate.state.rocksdb.backend import RocksDBBackend
from headgate.state.rocksdb.store import MemoryBudget

__all__ = ["MemoryBudget", "RocksDBBackend"]
