"""The same run on a Ray cluster: which machines there are, who works on them, who is sent what."""
