"""Canonical savepoints: keyed and operator state as Parquet tables."""
