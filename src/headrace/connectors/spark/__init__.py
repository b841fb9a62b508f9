"""Spark's own sources and sinks: DataFrames, Python data sources, epochs."""
