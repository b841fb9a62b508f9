#!/usr/bin/env bash
# All tests but the long ones. Those on Spark mostly wait and the others mostly compute, so both run at once; the output
# of those on Spark follows behind the other.
set -uo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

make --no-print-directory test-spark >"$log" 2>&1 &
spark=$!
make --no-print-directory test-fast
fast_code=$?
tail --pid=$spark -n +1 -f "$log"
wait $spark
spark_code=$?
if [ $fast_code != 0 ] || [ $spark_code != 0 ]; then
    echo "tests without a JVM ended with $fast_code, tests on Spark with $spark_code (0: all passed)" >&2
    exit 1
fi
