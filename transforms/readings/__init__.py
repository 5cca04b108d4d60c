"""Rows of files to readings by a query of the settings.

``tables``
    files of any format as rows of all their columns
``select``, ``row_wise``
    a row-wise SELECT over such rows, by DuckDB, and what it may hold
``meters``
    DSMR telegrams and CIM documents as objects, for files and messages
``slots``
    the readings of a series to one value a slot: sums, means, counters, what holds
"""
