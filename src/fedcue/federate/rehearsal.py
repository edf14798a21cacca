"""A run in miniature, without images or weights: what a method's tensors look like at every step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from fedcue.aggregate.privacy import DifferentialPrivacy
from fedcue.data.client import ClientData
from fedcue.data.dataset import Dataset
from fedcue.data.sources import NoImages
from fedcue.federate.counting import Meter, counting_vit
from fedcue.federate.outline import Counted, no_pixels
from fedcue.federate.protection import Protection
from fedcue.federate.roster import Roster
from fedcue.types import ClientMemory, ServerState, Update


@dataclass(frozen=True)
class Rehearsal:
    """Names, shapes and types of what travels; the numbers mean nothing."""

    reply: Update | None
    state: ServerState
    update: Update


@lru_cache(maxsize=1)
def rehearse(roster: Roster) -> Rehearsal:
    """Let a client without images that holds every class do all there is to do once."""
    classes = len(roster.classes)
    labels, none = np.arange(classes), np.empty(0, dtype=np.int64)
    priors = np.full(classes, 1 / classes)
    client = ClientData(0, "", "", False, labels, labels, none, labels, labels, none, priors)
    is_test = np.zeros(classes, dtype=np.bool_)
    dataset = Dataset(roster.dataset, roster.classes, labels, is_test, NoImages("nothing", classes))
    meter = Meter()
    config = roster.config.model_copy(update={"device": "cpu", "client_timeout": None})
    model = counting_vit(roster.architecture, meter)
    protection = _without_noise(roster.protection)
    site = Counted(config, dataset, [client], no_pixels(), model, roster.setting, protection)
    site.meter = meter
    reply = site.warm_up(0)
    state = roster.method.start(roster.setting, config.seed, [] if reply is None else [reply])
    update, _ = site.train(roster.method.download(state, 0, config.seed), ClientMemory())
    return Rehearsal(reply, state, update)


def _without_noise(protection: Protection) -> Protection:
    """Return the same protection with hardly any noise, in which a client of a few images would drown."""
    privacy = protection.privacy
    if isinstance(privacy, DifferentialPrivacy):
        privacy = privacy.model_copy(update={"noise": 1e-6})
    return replace(protection, privacy=privacy)
