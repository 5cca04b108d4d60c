"""File formats to Arrow columns: CSV, JSON Lines, Parquet and Avro, with the times and names that they share."""
