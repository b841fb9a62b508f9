"""A session that Headrace makes: the options of its JVM, and what the JVM made of those that the user gave.

With the argument `file` the user gives them in `spark-defaults.conf` only.
"""

import json
import sys

from headrace import Configuration
from headrace.driver.session import get_session

GIVEN = {
    "spark.master": "local[2]",
    "spark.driver.extraJavaOptions": "-Dmine=extra -XX:TieredStopAtLevel=3",
    "spark.driver.defaultJavaOptions": "-Dmine=default -Dother=default",
}


def main():
    spark = get_session(None, Configuration({"spark.master": "local[2]"} if "file" in sys.argv else GIVEN))
    jvm = spark.sparkContext._jvm
    options = list(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    properties = {
        name: jvm.java.lang.System.getProperty(name) for name in ("mine", "other", "log4j2.configurationFile")
    }
    executors = spark.sparkContext.getConf().get("spark.executor.defaultJavaOptions")
    spark.stop()
    print(json.dumps({"options": options, "properties": properties, "executors": executors}))


main()
