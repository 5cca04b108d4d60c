"""Decode: files of readings to Arrow record batches; one module for each format, and what they share."""
