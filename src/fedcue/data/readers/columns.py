"""Columns of a table that say what an image is: its label, its domain, its client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pydantic import Field

from fedcue.data.dataset import Dataset, ImageSource, Indices
from fedcue.data.options import DataOptions
from fedcue.errors import DataError, unknown

_MAX_NAME = 1_000
"""Characters of the name of a class, a domain or a client at most."""

_LABELS = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)


@dataclass(frozen=True)
class Columns:
    """The names of the columns that hold the image, its label and, if known, its domain and client."""

    image: str = "image"
    label: str = "label"
    domain: str | None = None
    client: str | None = None

    def described(self) -> list[str]:
        """Return the columns beside the image."""
        return [name for name in (self.label, self.domain, self.client) if name is not None]


class TableOptions(DataOptions):
    """Base of the datasets that lie in tables: say what the columns are called."""

    image: str = Field("image", description="column of the encoded images")
    label: str = Field("label", description="column of the classes")
    domain: str | None = Field(None, description="column of the domains, if any")
    client: str | None = Field(
        None, description="column that says whose an image is, if any; test images may be nobody's"
    )
    train_split: str = Field("train", description="split to train on: what its files' names begin with")
    test_split: str | None = Field(None, description="split to test on; test or validation by default")

    @property
    def columns(self) -> Columns:
        """The names of the columns."""
        return Columns(self.image, self.label, self.domain, self.client)


def require(where: object, columns: Sequence[str], present: Sequence[str]) -> None:
    """Refuse a table that lacks one of the columns."""
    for column in columns:
        if column not in present:
            hint = "Name the columns with data.image, data.label, data.domain and data.client."
            raise DataError(f"{where}: {unknown('column', column, present)} {hint}")


def tabled(
    name: str, tables: Sequence[pa.Table], train_tables: int, columns: Columns, images: ImageSource
) -> Dataset:
    """Make a dataset of tables, of which the first ``train_tables`` are to train on."""
    table, schema = _joined(tables), tables[0].schema
    classes, labels = _categories(table, columns.label, schema)
    domain_names, domains = _optional(table, columns.domain, schema)
    owner_names, owners = _owners(table, columns.client, schema)
    return Dataset(
        name=name,
        classes=classes,
        labels=labels,
        is_test=np.arange(len(table)) >= sum(len(part) for part in tables[:train_tables]),
        images=images,
        domains=domains,
        domain_names=domain_names,
        owners=owners,
        owner_names=owner_names,
    )


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    try:
        plain = [table.replace_schema_metadata(None) for table in tables]
        return pa.concat_tables(plain, promote_options="default")  # a missing column is empty
    except pa.ArrowException as error:
        raise DataError(
            f"The files have columns of different types ({str(error)[:300]}). Give files of one dataset."
        ) from error


def _optional(
    table: pa.Table, column: str | None, schema: pa.Schema
) -> tuple[tuple[str, ...], Indices | None]:
    return ((), None) if column is None else _categories(table, column, schema)


def _owners(table: pa.Table, column: str | None, schema: pa.Schema) -> tuple[tuple[str, ...], Indices | None]:
    """Return the clients and the number of each row's, -1 where a row says nothing."""
    if column is None:
        return (), None
    known = np.asarray(table[column].is_valid())
    names, numbers = _categories(table.filter(table[column].is_valid()), column, schema)
    owners = np.full(len(table), -1, dtype=np.int64)
    owners[known] = numbers
    return names, owners


def _categories(table: pa.Table, column: str, schema: pa.Schema) -> tuple[tuple[str, ...], Indices]:
    """Return the names of a column's values and the number of the name in each row."""
    values = table[column]
    if values.null_count:
        raise DataError(f"Column {column!r} is empty in {values.null_count} rows. Fill or remove these rows.")
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = values.dictionary_encode()
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not any(test(kind) for test in _LABELS):
        raise DataError(
            f"Column {column!r} is of type {str(kind)[:100]}. It must hold integers or strings; "
            "name another one with data.label, data.domain or data.client."
        )
    if pa.types.is_dictionary(values.type):
        return _texts(values, column)
    names = _class_names(schema, column)
    array = values.to_numpy()
    if names is not None and array.dtype.kind in "iu":
        if len(array) and not 0 <= array.min() <= array.max() < len(names):
            raise DataError(
                f"Column {column!r} has values outside its {len(names)} names: they must be 0 to "
                f"{len(names) - 1}."
            )
        return names, array.astype(np.int64)
    found, number = np.unique(array, return_inverse=True)
    return tuple(str(value) for value in found), number.astype(np.int64)


def _texts(values: pa.ChunkedArray, column: str) -> tuple[tuple[str, ...], Indices]:
    """Return the different texts of a column in order, and the number of the text in each row."""
    joined = values.unify_dictionaries().combine_chunks()
    texts = [str(text) for text in joined.dictionary.to_pylist()]
    if max(map(len, texts), default=0) > _MAX_NAME:
        raise DataError(
            f"Column {column!r} has names of more than {_MAX_NAME} characters. Give shorter ones."
        )
    indices = joined.indices.to_numpy().astype(np.int64)
    used = sorted(np.unique(indices).tolist(), key=lambda index: texts[index])
    number = np.zeros(len(texts), dtype=np.int64)
    number[used] = np.arange(len(used))
    return tuple(texts[index] for index in used), number[indices]


def _class_names(schema: pa.Schema, column: str) -> tuple[str, ...] | None:
    """Return the names that the hub's metadata gives the integers of a column."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        names = features[column]["names"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return tuple(names) if isinstance(names, list) and all(isinstance(n, str) for n in names) else None
