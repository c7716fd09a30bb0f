"""Recipes as files; `selfrag.training.settings` reads them."""
