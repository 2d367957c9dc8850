"""WIRE: bytes to tensors and back, in every format that callers speak."""
