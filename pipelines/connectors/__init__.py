"""Where a job reads and writes. A connector is a module.

``live``
    what a live source and a live sink must do, how those that settings name are loaded (``CONNECTORS`` in
    ``schemas/settings/connectors.py`` is the table), their secrets, the first missing window, and the blocks on record
``files``, ``kafka``, ``pubsub``
    the connectors; all file formats and standard input are ``files``, also those of a job that ends
``job_io``
    the paths, topics and outputs of a job, and which of them must not be the same
"""
