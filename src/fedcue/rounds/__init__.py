"""A run: rounds in order, done by an engine, written down as they end."""
