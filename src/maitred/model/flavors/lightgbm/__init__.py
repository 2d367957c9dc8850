"""LightGBM models, from file to answer."""
