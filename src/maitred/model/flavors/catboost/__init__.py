"""CatBoost models, from file to answer."""
