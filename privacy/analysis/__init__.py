"""Questions about releases: planning, baselines, the audit by enumeration, and close adversaries."""
