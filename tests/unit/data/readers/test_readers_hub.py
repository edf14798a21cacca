"""The hub path, against a small hub on this machine's loopback interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.data_files import encoded, write_parquet
from support.fake_hub import run_with_hub, serve

from fedcue.data.readers.public import fetch
from fedcue.errors import DataError

SCRIPT = """
import sys
from fedcue.data.readers.parquet import Parquet
from fedcue.data.readers.public import DomainNet, PACS
from fedcue.errors import FedcueError
options = {"own": Parquet(hub="someone/owls"), "pacs": PACS(), "domainnet": DomainNet(classes=("bird",))}
try:
    dataset = options[sys.argv[1]].read()
    print(len(dataset.train), len(dataset.test), dataset.images.open(0).size)
except FedcueError as error:
    print("refused:", error)
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "made.parquet"
    columns = {"label": [0, 1, 0], "domain": ["photo"] * 3}
    write_parquet(file, columns, [encoded(number) for number in range(3)], names={"label": ["bird", "ant"]})
    with serve({"data/train-00000-of-00001.parquet": file.read_bytes(), "README.md": b"# owls"}) as address:
        yield address


def read(which: str, endpoint: str, home: Path, offline: bool = False) -> str:
    return run_with_hub(SCRIPT, endpoint, home, which, offline=offline)


def test_a_dataset_is_downloaded_once_and_then_read_from_the_cache(hub: str, tmp_path: Path) -> None:
    assert read("own", hub, tmp_path / "home") == "3 0 (6, 6)"
    assert read("own", hub, tmp_path / "home", offline=True) == "3 0 (6, 6)"
    assert not list((tmp_path / "home").rglob("README.md"))


def test_without_a_network_the_message_says_what_to_do(tmp_path: Path) -> None:
    said = read("own", "http://127.0.0.1:9", tmp_path / "home", offline=True)
    assert said.startswith("refused: Dataset 'someone/owls' is not in the local cache")
    assert "data.root=FOLDER" in said


def test_an_incomplete_download_is_refused(hub: str, tmp_path: Path) -> None:
    said = read("pacs", hub, tmp_path / "home")
    assert said.startswith(
        "refused: The cached download of 'pacs' has 3 training and 0 test images instead of"
    )


def test_a_dataset_that_nobody_hosts_says_where_to_get_it() -> None:
    with pytest.raises(DataError, match=r"'inaturalist' cannot be downloaded for you\. Get it from https://"):
        fetch("inaturalist")
