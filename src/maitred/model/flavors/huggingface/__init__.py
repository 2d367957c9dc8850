"""Hugging Face checkpoints, from file to answer."""
