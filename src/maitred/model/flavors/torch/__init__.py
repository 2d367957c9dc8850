"""PyTorch models, from file to answer."""
