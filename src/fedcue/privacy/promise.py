"""What differential privacy promises, as a summary says it: against whom, of what, what is not covered."""

from __future__ import annotations

AGAINST = {
    "central": "everyone who sees what the server sends or publishes; the server itself is trusted",
    "local": "everyone, a server that follows the protocol included",
    "distributed": "everyone, a server that follows the protocol included, as long as it knows the noise of "
    "no more than privacy.colluding clients of a round",
    "secret": "; and only as long as nobody but the server knows who took part (not other clients either)",
}
NOT_COVERED = (
    "test images, and how many of them each client reports as right in a deployment; choices made by "
    "looking at results; that a client failed; who knows or guesses the seed of a simulation; "
    "what a simulation writes down beside the model: class priors in model.json, counts in "
    "analysis.safetensors, clients' own tensors, accuracies, the seed in config.toml"
)

UNITS = {"image": "one training record", "client": "one client with all its training records"}
"""What a neighbouring federation has another of, by ``privacy.unit``."""

SIMULATED = "simulated noise: who knows the seed can compute it again"
FRESH = "keys of 256 bits of the operating system, at each client or at the server"
