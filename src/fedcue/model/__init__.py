"""The frozen backbone and the ways prompts enter it."""
