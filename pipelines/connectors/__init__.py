"""Where a job reads and writes. A connector is a module; those of other distributions are plug-ins.

``live``
    what a live source and a live sink must do, how those that settings name are loaded (``CONNECTORS`` in
    ``schemas/settings/connectors.py`` is the table), and a sink that cannot be read back
``files``, ``kafka``, ``pubsub``
    the connectors; all file formats and standard input are ``files``, also those of a job that ends
``job_paths``, ``undelivered``
    which paths a job reads and writes, and rows on record that a sink lacks
"""
