"""``fedcue data`` and ``fedcue partition`` as a user types them, on tiny files."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from PIL import Image
from support.data_files import encoded, save_picture, write_parquet
from typer.testing import CliRunner, Result

from fedcue.cli.main import app
from fedcue.data.catalogue import CATALOGUE
from fedcue.data.readers import hub
from fedcue.errors import ConfigError, DataError, PartitionError


def fedcue(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=True)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes, each with two training images and one test image."""
    for number, (part, label) in enumerate((p, c) for p in ("train", "test") for c in ("cat", "dog")):
        for copy in range(2 if part == "train" else 1):
            save_picture(tmp_path / "mine" / part / label / f"{copy}.png", 10 * number + copy)
    return tmp_path / "mine"


def test_ls_names_every_dataset() -> None:
    text = fedcue("data", "ls").output
    assert all(name in text for name in CATALOGUE)
    assert {one["name"] for one in json.loads(fedcue("data", "ls", "--json").output)} == set(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_show_tells_source_and_licence(name: str) -> None:
    shown = " ".join(fedcue("data", "show", name).output.split())
    assert CATALOGUE[name].licence in shown
    assert json.loads(fedcue("data", "show", name, "--json").output)["classes"] == CATALOGUE[name].classes


def test_an_unknown_dataset_is_explained() -> None:
    error = fedcue("data", "show", "cifar1000").exception
    assert isinstance(error, DataError)
    assert "Did you mean 'cifar100'" in str(error)


def test_fetch_says_where_the_files_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub, "download", lambda repository: tmp_path / repository)
    assert "uoft-cs/cifar100" in fedcue("data", "fetch", "cifar100").output.replace("\n", "")
    assert json.loads(fedcue("data", "fetch", "cifar100", "--json").output)["name"] == "cifar100"
    assert "inat_comp" in str(fedcue("data", "fetch", "inaturalist").exception)


def test_check_passes_good_pictures(pictures: Path) -> None:
    done = fedcue("data", "check", str(pictures))
    assert done.exit_code == 0
    assert "4 training and 2 test images, 2 classes; 0 problems" in done.output


def test_check_lists_what_is_wrong(pictures: Path) -> None:
    (pictures / "train" / "cat" / "broken.png").write_bytes(b"not a picture")
    Image.open(pictures / "train" / "dog" / "0.png").save(pictures / "test" / "dog" / "again.png")
    done = fedcue("data", "check", str(pictures))
    assert done.exit_code == 1
    assert "unreadable image" in done.output
    assert "broken.png" in done.output
    assert "duplicate" in done.output
    found = json.loads(fedcue("data", "check", str(pictures), "--json").output)
    assert {finding["kind"] for finding in found["findings"]} == {"unreadable image", "duplicate"}
    assert not found["clean"]


def test_check_reads_a_named_dataset_or_other_columns(tmp_path: Path) -> None:
    columns = {"fine_label": [0, 1] * 3}
    names = {"fine_label": ["apple", "pear"]}
    for number, part in enumerate(("train", "test")):
        images = [encoded(10 * number + k) for k in range(6)]
        write_parquet(tmp_path / f"{part}.parquet", columns, images, image="img", names=names)
    for settings in (["data=cifar100"], ["data.image=img", "data.label=fine_label"]):
        done = fedcue("data", "check", str(tmp_path), *settings)
        assert "6 training and 6 test images, 2 classes" in done.output, done.exception
    assert isinstance(fedcue("data", "check", str(tmp_path), "data.labels=x").exception, ConfigError)
    assert isinstance(fedcue("data", "check", str(tmp_path / "nothing")).exception, DataError)


def test_partition_prints_sizes_and_writes_the_map(tmp_path: Path) -> None:
    done = fedcue("partition", "cifar100-pathological", "--out", str(tmp_path / "map"))
    assert done.exit_code == 0
    assert "100 clients, 100 classes, 50,000 training and 10,000 test images" in done.output
    assert "from the dataset's description" in done.output
    with (tmp_path / "map" / "partition.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 100 * 10
    assert sum(int(row["train_images"]) for row in rows) == 50_000
    with Image.open(tmp_path / "map" / "partition.png") as picture:
        assert min(picture.size) > 600


def test_partition_of_own_pictures_by_domain_and_by_class(pictures: Path, tmp_path: Path) -> None:
    settings = ["data=folder", f"data.root={pictures}", "partition=iid", "partition.clients=2"]
    found = json.loads(fedcue("partition", *settings, "--out", str(tmp_path / "map"), "--json").output)
    assert found["training_images_per_client"] == {"min": 2, "median": 2.0, "max": 2}
    assert not found["from_description"]
    assert len(found["files"]) == 2
    assert "description" in fedcue("partition", "pacs", "scale=cpu").output
    domains = fedcue("partition", "pacs", "--out", str(tmp_path / "pacs"))
    assert "art_painting-0" in domains.output
    assert "sketch" in (tmp_path / "pacs" / "partition.csv").read_text()


def test_partition_of_inaturalist_counts_the_users_that_are_left_out() -> None:
    found = json.loads(fedcue("partition", "inaturalist", "--json").output)
    assert (found["clients"], found["training_images"], found["test_images"]) == (1_018, 96_748, 35_641)
    assert found["notes"][0].startswith("8,257 clients (")
    own = json.loads(fedcue("partition", "inaturalist", "data.split=own", "--json").output)
    assert own["training_images"] + own["test_images"] < 120_293


def test_an_impossible_partition_is_explained() -> None:
    error = fedcue("partition", "cifar100-pathological", "partition.clients=5").exception
    assert isinstance(error, PartitionError)
    assert "at least 10 clients" in str(error)


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    """Three clients with two classes each, the last without test images."""
    for number, name in enumerate(("north", "south", "east")):
        for part, copies in (("train", 3), ("test", 2 if name != "east" else 0)):
            for copy in range(2 * copies):
                path = tmp_path / "clients" / name / part / ("cat", "dog")[copy % 2] / f"{part}{copy}.png"
                save_picture(path, 100 * number + copy + 50 * (part == "test"))
    return tmp_path / "clients"


@pytest.mark.parametrize("kind", ["federated-folder", "folder"])
def test_real_clients_are_not_dealt_out_again_by_a_recipe(clients: Path, kind: str) -> None:
    settings = [f"data={kind}", f"data.root={clients}"]
    found = json.loads(fedcue("partition", *settings, "--json").stdout)
    assert found["clients"] == 2
    assert "own clients" in found["title"]
    assert "own 2 clients are kept; partition=pathological is not used" in found["notes"][0]
    assert found["notes"][1].startswith("1 client (east) is left out: no test image")
    named = ["partition=iid", "partition.clients=4"]
    assert json.loads(fedcue("partition", *settings, *named, "--json").stdout)["clients"] == 4


def test_clients_without_test_images_train_or_are_given_some(clients: Path) -> None:
    settings = [f"data.root={clients}", "data=federated-folder", "partition=natural"]
    found = json.loads(fedcue("partition", *settings, "partition.min_test=0", "--json").stdout)
    assert found["test_images_per_client"]["min"] == 0
    assert found["notes"] == ["1 client (east) has no test image and cannot be tested."]
    found = json.loads(fedcue("partition", *settings, "data.test_share=0.34", "--json").stdout)
    assert (found["clients"], found["notes"]) == (3, [])


def test_a_recipe_s_root_is_relative_to_the_recipe(clients: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('base = "default"\n[data]\nname = "federated-folder"\nroot = "clients"\n')
    assert json.loads(fedcue("partition", str(recipe), "--json").stdout)["clients"] == 2


@pytest.mark.parametrize("name", ["folder", "federated-folder", "manifest", "parquet", "saved", "given"])
def test_show_tells_how_one_s_own_images_are_read(name: str) -> None:
    shown = " ".join(fedcue("data", "show", name).output.split())
    assert f"fedcue run data={name} data.root=PATH" in shown
    assert "data.on_bad_image" in shown
    assert "data.root" in json.loads(fedcue("data", "show", name, "--json").output)["settings"]


def test_check_reads_a_list(pictures: Path) -> None:
    (pictures / "manifest.csv").write_text(
        "path,label,split\ntrain/cat/0.png,cat,\ntest/cat/0.png,cat,test\n"
        "train/dog/0.png,dog,\ntest/dog/0.png,dog,test\n"
    )
    for path in (pictures, pictures / "manifest.csv"):
        assert (
            "2 training and 2 test images, 2 classes; 0 problems" in fedcue("data", "check", str(path)).output
        )


def test_check_does_not_wait_for_a_pipe(pictures: Path) -> None:
    os.mkfifo(pictures / "train" / "cat" / "pipe.png")
    done = fedcue("data", "check", str(pictures))
    assert done.exit_code == 1
    assert "pipe.png" in done.output
    assert "not an ordinary file" in done.output
