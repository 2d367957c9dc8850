"""XGBoost models, from file to answer."""
