from __future__ import annotations

import numpy as np
import pytest

from fedcue.data.readers.digits import Digits
from fedcue.errors import DataError


def test_chosen_classes_are_relabelled_in_order() -> None:
    whole, part = Digits().read(), Digits(classes=("7", "2")).load(0)
    assert part.classes == ("7", "2")
    first = int(np.flatnonzero(whole.labels == 7)[0])
    assert part.labels[0] in (0, 1)
    seven = int(np.flatnonzero(part.labels == 0)[0])
    assert part.images.content(seven) == whole.images.content(first)


def test_an_unknown_class_is_named() -> None:
    with pytest.raises(DataError, match=r"Unknown class of digits 'seven'. Known: 0, 1"):
        Digits(classes=("seven",)).load(0)


def test_taking_twice_reads_the_same_images() -> None:
    whole = Digits().read()
    part = whole.take(np.array([5, 9, 2])).take(np.array([2, 0]))
    assert part.images.content(0) == whole.images.content(2)
    assert part.images.describe(1) == whole.images.describe(5)
    assert part.labels.tolist() == whole.labels[[2, 5]].tolist()
