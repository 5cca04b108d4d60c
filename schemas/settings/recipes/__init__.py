"""Recipes: one file for each platform or device whose messages fit a mapping; :mod:`..mappings` reads them."""
