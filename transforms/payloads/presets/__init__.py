"""The payload formats of platforms; the settings name them in ``readings.preset``.

``json_documents``, ``xml_documents``
    EdgeX, NGSI, ThingsBoard and SenML; CIM and Green Button
``sparkplug``, ``dsmr``
    one format each
"""
