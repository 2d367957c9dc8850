"""HTTP: bytes become exchanges, exchanges become bytes. Knows no model."""
