"""The payload formats of platforms; the settings name them in ``readings.preset``.

``json_documents``
    EdgeX, NGSI and ThingsBoard
``senml``, ``sparkplug``, ``dsmr``, ``green_button``
    one format each
"""
