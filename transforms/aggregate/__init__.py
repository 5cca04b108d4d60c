"""From readings to rows of record, in the order of the modules below.

``encode``, ``cells``
    readings to slot, state, window and shard; which reading of a cell counts
``collect``, ``panes``
    one value a cell for each window and shard; windows that a runner hands over in several panes
``release``, ``block_log``
    charge, noise and rows of record; the log of blocks beside the sink
``rosters``
    numbers of series, and the roster of a window
``discovery``, ``transitions``
    what settings leave to the data (schedule, series, groups); transition counts of every series
"""
