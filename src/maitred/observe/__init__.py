"""Observability: metrics and logs, made by listening to events; nothing calls them."""
