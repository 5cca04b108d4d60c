"""The payload formats of meters; the settings name them in ``readings.preset``.

``xml_documents``, ``dsmr``
    CIM and Green Button; telegrams of Dutch meters
``wanted``
    what of a message is a reading
"""
