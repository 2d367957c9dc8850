"""DEPLOYMENT: one name that callers use, and what answers behind it."""
