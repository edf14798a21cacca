"""Trackers people already use, fed while a run goes on; off unless ``log`` names them."""
