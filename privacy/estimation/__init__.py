"""From histories or released rows to a belief: counts, confidence, classes per series, tests and drift.

``transition_counts``, ``diagnostics``, ``hypothesis_tests``
    a history's counts, the chain of them, and what speaks against one chain
``confidence``, ``per_series``
    classes that hold for a history, or for most of its series
``private_counts``, ``released_bounds``
    a belief from noisy counts or from released rows
``drift``, ``belief_checks``
    whether a belief in force is contradicted, and what richer beliefs would cost
"""
