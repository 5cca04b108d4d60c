"""Estimates that a job makes of its own model, and what follows from them."""
