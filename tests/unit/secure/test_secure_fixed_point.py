"""Arrays become words and come back; whatever does not fit is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from fedcue.secure.fixed_point import FixedPoint, count_words
from fedcue.secure.refusals import OutOfRange, SecureSumError


def test_arrays_come_back_with_their_names_shapes_and_values():
    arrays = {
        "head": np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4),
        "counts": np.array([5, 0, 7]),
        "holds": np.array([True, False]),
        "loss": np.float64(0.25),
        "empty": np.zeros((0, 4)),
    }
    fixed, shapes = FixedPoint(), {name: np.shape(array) for name, array in arrays.items()}
    words = fixed.pack(arrays)
    assert words.dtype == np.uint64
    assert len(words) == count_words(shapes) == 18
    got = fixed.unpack(words, shapes)
    assert {name: array.shape for name, array in got.items()} == shapes
    for name, array in arrays.items():
        np.testing.assert_allclose(got[name], array, atol=2.0**-33)
    np.testing.assert_array_equal(got["counts"], arrays["counts"])


def test_the_order_of_names_does_not_matter():
    one, two = np.ones(2), np.full(3, 2.0)
    fixed = FixedPoint(8, 100.0)
    np.testing.assert_array_equal(fixed.pack({"b": two, "a": one}), fixed.pack({"a": one, "b": two}))
    np.testing.assert_array_equal(
        fixed.pack({"b": two, "a": one}), np.array([256, 256, 512, 512, 512], np.uint64)
    )


def test_values_are_rounded_to_the_nearest_and_ties_to_even():
    fixed = FixedPoint(1, 100.0)
    words = fixed.pack({"x": np.array([0.25, 0.75, -0.25, -0.75, 0.3, -0.3])})
    assert words.view(np.int64).tolist() == [0, 2, 0, -2, 1, -1]


def test_the_largest_allowed_sum_is_right_and_one_client_more_is_refused():
    fixed = FixedPoint(0, 2.0**53)
    most = fixed.most_clients
    assert most == 1023
    top = fixed.pack({"x": np.array([2.0**53, -(2.0**53)])})
    total = fixed.unpack(fixed.add_up([top] * most), {"x": (2,)})["x"]
    assert total.tolist() == [most * 2.0**53, -most * 2.0**53]
    with pytest.raises(SecureSumError, match="1024 clients may not fit 64 bits"):
        fixed.add_up([top] * (most + 1))


def test_a_value_out_of_range_is_refused_by_name():
    head = np.array([[0, 1, 2], [3, 1001, -2000.0]])
    with pytest.raises(OutOfRange, match=r"'head' holds 1001 at position 4 \(2 values of 6 .*-1000 to 1000"):
        FixedPoint(16, 1000.0).pack({"head": head, "other": np.zeros(3)})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1000.0001])
def test_what_is_no_number_or_too_large_is_refused(value):
    with pytest.raises(OutOfRange, match="'loss' holds"):
        FixedPoint(16, 1000.0).pack({"loss": np.array(value)})


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([1j]), np.array([None])])
def test_what_is_no_array_of_numbers_is_refused(array):
    with pytest.raises(SecureSumError, match="'x' is of type"):
        FixedPoint().pack({"x": array})


@pytest.mark.parametrize(
    ("bits", "limit", "message"),
    [(-1, 1.0, "fraction_bits"), (53, 1.0, "fraction_bits"), (3, 0.0, "limit"), (3, float("nan"), "limit"), (33, 2.0**21, "53 bits")],
)  # fmt: skip
def test_numbers_that_cannot_be_exact_are_refused(bits, limit, message):
    with pytest.raises(SecureSumError, match=message):
        FixedPoint(bits, limit)


def test_a_vector_of_another_length_or_type_is_refused():
    for words in (np.zeros(3, np.uint64), np.zeros(4, np.int64)):
        with pytest.raises(SecureSumError, match="4 numbers"):
            FixedPoint().unpack(words, {"x": (2, 2)})


def test_no_vector_has_no_sum():
    with pytest.raises(SecureSumError, match="at least one"):
        FixedPoint().add_up([])
