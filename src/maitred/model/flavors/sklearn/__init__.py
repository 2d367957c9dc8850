"""scikit-learn models, from file to answer."""
