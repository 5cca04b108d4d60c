"""Where a job reads and writes. A connector is the module with the name of its setting.

``table``
    what a live source and a live sink must do, and the connector that settings name
``folders``, ``kafka``, ``pubsub``
    the connectors of live jobs; all file formats and standard input are ``folders``
``files``
    files as source and sink of a job that ends
``places``, ``undelivered``
    which paths and topics a job uses, and rows on record that a sink lacks
"""
