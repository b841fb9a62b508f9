"""PyFlink's module paths: a PyFlink DataStream program runs on Spark by changing the root of its imports.

    from pyflink.datastream import StreamExecutionEnvironment            # before
    from headrace.pyflink.datastream import StreamExecutionEnvironment   # after

The names are those of `headrace`, in the modules where PyFlink has them. Where PyFlink's values or interface differ (rows
that can be changed, decimals of any length, futures of a job client), and for names of Flink 1.x, there is a class of its
own. What cannot be had without Flink raises one error that names the nearest alternative, or is missing.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

_TO_SPARK = "write with Spark: stream.foreach_epoch(lambda df, n: df.write....save())"
_INTERNAL = "it is internal to PyFlink; remove what reaches into it"

NOT_HERE = {
    "datastream.connectors.cassandra": _TO_SPARK,
    "datastream.connectors.dynamic_kafka": "read a KafkaSource of each cluster, and union() them",
    "datastream.connectors.elasticsearch": _TO_SPARK,
    "datastream.connectors.hybrid_source": "run one job after the other, or union() the two sources",
    "datastream.connectors.jdbc": _TO_SPARK,
    "datastream.connectors.kinesis": "read it with Spark's data source, see docs/connectors/python-data-sources.md",
    "datastream.connectors.pulsar": "read it with Spark's data source, see docs/connectors/python-data-sources.md",
    "datastream.connectors.rabbitmq": "write a source, see docs/connectors/write-your-own.md",
    "ml": "train with Spark ML, or in a process function, see examples/online_learning.py",
    "dataframe": "use Spark's DataFrames: env.from_dataframe(df), stream.foreach_epoch(function)",
    "java_gateway": "there is no Java behind Headrace's API; remove what reaches into it",
    "util": _INTERNAL,
    "fn_execution": _INTERNAL,
    "testing": "test with headrace.testing: run(...), OneInputHarness",
}
"""Modules of PyFlink that Headrace has not, and what to use in their place."""


class _SaysWhatToUse(MetaPathFinder):
    """The last finder: the error of an import of a module that is not here names the nearest alternative."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        root, _, module = fullname.partition(f"{__name__}.")
        if not root and module in NOT_HERE:
            raise ModuleNotFoundError(f"pyflink.{module} is not in Headrace: {NOT_HERE[module]}", name=fullname)


sys.meta_path.append(_SaysWhatToUse())
