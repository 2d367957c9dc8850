"""One function per test; the figures they are judged by stand in `reliability/figures.py`."""
