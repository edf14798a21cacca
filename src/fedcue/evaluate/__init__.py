"""Per-client accuracy and what the figures need."""
