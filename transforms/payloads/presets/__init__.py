"""The payload formats of platforms: EdgeX, NGSI, ThingsBoard, DSMR, Green Button, SenML and Sparkplug B."""
