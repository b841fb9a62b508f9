"""`pyflink.datastream.state_backend`."""

from headgate.api.state_backends import EmbeddedRocksDBStateBackend, HashMapStateBackend, StateBackend

__all__ = ["EmbeddedRocksDBStateBackend", "HashMapStateBackend", "StateBackend"]
