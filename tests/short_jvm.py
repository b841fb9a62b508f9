"""The options of JVMs that live for seconds or minutes, as all do that tests start."""

import os
import sys
from pathlib import Path

# With its best compiler such a JVM spends more on compiling than it saves. Half of the processor time of a JVM, measured
# from its start to its thirtieth job. Half of the rest, until the first job, is spent on loading classes:
# scripts/class_archive.py makes them ready.
_CLASSES = Path(sys.prefix) / "spark-classes.jsa"
_ARCHIVE = f" -XX:SharedArchiveFile={_CLASSES} -Xlog:cds=off -Xlog:cds+dynamic=off" if _CLASSES.exists() else ""


def set_options():
    """Let the JVMs that this process starts have them, unless the environment says otherwise."""
    os.environ.setdefault("JDK_JAVA_OPTIONS", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC{_ARCHIVE}")
