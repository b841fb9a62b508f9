"""`pyflink.common.types`."""

from headgate.records.types import Row as Row
