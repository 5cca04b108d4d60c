"""The report: one HTML file about what a ledger's domains have released, what it cost, and what is promised.

``contents`` reads a ledger into plain values, ``figures`` draws them, ``page`` writes the file.
"""
