"""What holds for all tests: their files are in memory where there is enough of it."""

import os
import shutil
import tempfile
from pathlib import Path

import psutil

MEMORY = Path("/dev/shm")
ENOUGH = 4 << 30  # the files of all tests together stay far below

# Storage and RocksDB sync what they write, and so most of the time of the tests would be that of a disk.
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK):
    free = min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available)
    if free > ENOUGH:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)  # other processes of the tests inherit it
