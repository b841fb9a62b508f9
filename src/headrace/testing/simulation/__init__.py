"""Seeded simulation: the production coordinator, gates, storage, sources and sinks in one process, with drawn faults.

    python -m headrace.testing.simulation --seeds 2000
    python -m headrace.testing.simulation --seed 17 --verbose

One seed fixes the program, its options, every interleaving and every fault, so a failing seed fails again.
"""
