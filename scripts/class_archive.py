"""Write the classes that Spark loads for a small job to an archive, from which a JVM takes them in place of its jars.

    python scripts/class_archive.py FILE

A JVM of Spark with the archive uses half of the processor time until its first job has ended: the tests start dozens. A JVM
that the archive does not fit, such as one of another version, does without it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(archive: Path) -> None:
    archive.unlink(missing_ok=True)
    os.environ["JDK_JAVA_OPTIONS"] = (
        f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    )
    from pyspark import SparkContext

    from headrace import Configuration, StreamExecutionEnvironment
    from headrace.driver.session import get_session

    spark = get_session(None, Configuration({"headrace.spark.master": "local[8]", "spark.driver.memory": "1g"}))
    env = StreamExecutionEnvironment.get_execution_environment(Configuration(), spark)
    env.from_sequence(1, 100).key_by(lambda number: number % 3).map(lambda number: number).execute_and_collect().close()
    spark.range(100).selectExpr("id % 3 as key").groupBy("key").count().collect()
    gateway = SparkContext._gateway  # noqa: SLF001 - there is no other way to end the JVM
    spark.stop()
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(120)  # it writes the archive when it exits


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
