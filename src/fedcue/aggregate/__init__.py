"""Pure functions that combine what clients send."""
