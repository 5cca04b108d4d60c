"""Merging ledgers that were kept apart into a new one.

``merge``
    the command's whole way, from the old ledgers to the new file
``compatibility``
    which ledgers can be merged
``union``
    which charge and which block are of record afterwards
``writer``
    the new ledger's rows
"""
