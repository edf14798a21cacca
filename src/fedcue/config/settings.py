"""The configuration of a run, typed throughout."""

from __future__ import annotations

from pydantic import SerializeAsAny

from fedcue.aggregate.robust import Aggregation
from fedcue.config.sections import CommonSettings
from fedcue.data.options import DataOptions
from fedcue.data.partition import PartitionOptions
from fedcue.methods.base import Method
from fedcue.privacy.mechanisms import Privacy


class RunConfig(CommonSettings):
    """Everything that determines a run."""

    method: SerializeAsAny[Method]
    data: SerializeAsAny[DataOptions]
    partition: SerializeAsAny[PartitionOptions]
    aggregate: SerializeAsAny[Aggregation]
    privacy: SerializeAsAny[Privacy]
