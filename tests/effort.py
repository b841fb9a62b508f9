"""How hard property tests try: a few examples in `make test`, many more in the line "properties" of `make test-long`."""

import os

EFFORT = float(os.environ.get("HEADRACE_TEST_EFFORT", "1"))


def examples(number):
    """So many examples in `make test`."""
    return max(1, round(number * EFFORT))
