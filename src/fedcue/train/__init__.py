"""Local training at a client."""
