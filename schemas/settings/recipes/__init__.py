"""Recipes: one file for each platform or device whose messages fit a mapping; :mod:`..recipe_files` reads them."""
