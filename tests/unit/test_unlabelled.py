"""The clients that scripts/unlabelled.py draws."""

from __future__ import annotations

import numpy as np
from unlabelled import Images


def test_a_client_has_images_of_one_domain_by_its_mix_and_none_twice():
    labels, domains = np.arange(240) % 6, np.arange(240) // 120
    images = Images(np.eye(240, 6), labels, domains)
    for client in images.clients("pathological", 2, 20, 5, np.random.default_rng(0)):
        assert len(set(client.rows)) == 20
        assert len(set(domains[client.rows])) == 1
        assert (client.labels == labels[client.rows]).all()
        assert set(client.labels) <= set(np.flatnonzero(client.mix))
        assert (client.mix > 0).sum() == 2
        assert (client.logits == images.logits[client.rows]).all()


def test_no_client_is_drawn_where_images_do_not_suffice():
    images = Images(np.zeros((12, 6)), np.arange(12) % 6, np.zeros(12, dtype=np.int64))
    assert images.clients("pathological", 2, 20, 5, np.random.default_rng(0)) == []
