"""The gateway: what callers speak on the data and admin ports, and nothing that decides about models."""
