"""PySpark looks for data sources in modules named so: `spark.read.format("headrace-state")` works once this is installed."""

from headrace.savepoints.data_source import StateDataSource as DefaultSource

__all__ = ["DefaultSource"]
