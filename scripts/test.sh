#!/usr/bin/env bash
# All tests but the long ones. Those on Spark often wait and the others compute, so both run at once, and the others take
# what those on Spark leave. The output of those on Spark follows behind the other, and at the end the list of known
# defects: the reasons of tests in tests/defects that fail as expected.
set -uo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp) fast_log=$(mktemp)
trap 'rm -f "$log" "$fast_log"' EXIT

make --no-print-directory test-spark >"$log" 2>&1 &
spark=$!
nice -n 5 make --no-print-directory test-fast WORKERS=$(($(nproc) + 1)) 2>&1 | tee "$fast_log"  # some of them wait too
fast_code=${PIPESTATUS[0]}
tail --pid=$spark -n +1 -f "$log"
wait $spark
spark_code=$?
defects=$(sed -n 's#^XFAIL tests/defects/[^ ]*\(\[.*\]\)\? - ##p' "$fast_log" "$log" | sort -uV)
if [ -n "$defects" ]; then
    printf '\n%s known defects, each shown by tests that fail as expected:\n%s\n' "$(wc -l <<<"$defects")" "$defects"
fi
if [ $fast_code != 0 ] || [ $spark_code != 0 ]; then
    echo "tests without a JVM ended with $fast_code, tests on Spark with $spark_code (0: all passed)" >&2
    exit 1
fi
