"""The daemon of workers with pytest loaded: a function of a test's module brings it to every worker, at 0.1 s of CPU each."""

import pytest  # noqa: F401

from headrace.worker.daemon import main

if __name__ == "__main__":
    main()
