"""The payload formats of platforms; the settings name them in ``readings.preset``.

``json_documents``, ``xml_documents``
    EdgeX, NGSI and ThingsBoard; CIM and Green Button
``dsmr``
    telegrams of Dutch meters
"""
