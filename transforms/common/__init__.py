"""What several steps share.

``batches``
    record batches of readings and rejects, and their coder
``reading_rows``
    readings of a pipeline's own, as record batches
"""
