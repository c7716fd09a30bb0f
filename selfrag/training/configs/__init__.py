"""Recipes as files; `selfrag.training.recipes` reads them."""
