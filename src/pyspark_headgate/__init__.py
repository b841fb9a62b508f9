"""PySpark looks for data sources in modules named so: `spark.read.format("headgate-state")` works once this is installed."""

from headgate.savepoints.data_source import StateDataSource as DefaultSource

__all__ = ["DefaultSource"]
