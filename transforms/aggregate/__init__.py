"""From readings to rows of record, in the order of the modules below.

``encoder``, ``encode``, ``cells``
    readings to slot, state, window and shard; which reading of a cell counts
``collect``, ``gathered``
    one value a cell for each window and shard, from all panes of the window; readings that wait for words
``coders``
    what Beam keeps and moves of a window, as bytes
``release``, ``ledger_access``, ``memory``
    charge, noise and rows of record; how workers wait for a ledger; the file that remembers it
``rosters``
    numbers of series, and the roster of a window
``transitions``
    transition counts of every series
"""
