"""Where a job reads and writes. A connector is a module; those of other distributions are plug-ins.

``table``
    what a live source and a live sink must do, and the connector that settings name
``folders``, ``kafka``, ``pubsub``
    the connectors of live jobs; all file formats and standard input are ``folders``
``files``
    files as source and sink of a job that ends
``places``, ``undelivered``, ``resent_topic``
    which paths and topics a job uses, rows on record that a sink lacks, and a sink that gets the last ones again
"""
