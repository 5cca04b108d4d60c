"""Models that a job estimates itself.

``estimate``
    an estimate, from what the settings name
``successors``
    the queries that follow each other when the belief changes
``drift``
    drift tests of released rows
"""
