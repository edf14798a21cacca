"""``fedcue flower init``: what it writes, who may read it, what it refuses."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from typer.testing import CliRunner

from fedcue.cli.flower import app
from fedcue.errors import ConfigError, RunFolderError


def init(folder: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["init", str(folder), *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_keys_are_private_and_the_certificate_is_the_cas(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    init(folder, "--nodes", "2", "--host", "server.example")
    for name in ("ca/ca.key", "server/server.key", "node-1/node.key", "node-2/node.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    authority = x509.load_pem_x509_certificate((folder / "node-1" / "ca.crt").read_bytes())
    certificate = x509.load_pem_x509_certificate((folder / "server" / "server.pem").read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"localhost", "server.example"}
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    key = load_pem_private_key((folder / "server" / "server.key").read_bytes(), None)
    assert key.public_key() == certificate.public_key()


def test_each_node_has_a_key_of_its_own_and_nobody_elses(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    init(folder, "--nodes", "2")
    public = []
    for number in (1, 2):
        private = load_ssh_private_key((folder / f"node-{number}" / "node.key").read_bytes(), None)
        public.append(load_ssh_public_key((folder / "server" / "keys" / f"node-{number}.pub").read_bytes()))
        assert private.public_key() == public[-1]
        files = {path.name for path in (folder / f"node-{number}").iterdir()}
        assert files == {"ca.crt", "node.key", "supernode.sh"}
    assert public[0] != public[1]
    assert not list((folder / "server").rglob("node.key"))


def test_the_app_fetches_nothing_and_runs_what_was_asked(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    init(folder, "default", "rounds=3", "snapshots=[0,3]")
    app_file = tomllib.loads((folder / "server" / "app" / "pyproject.toml").read_text())
    assert app_file["project"]["dependencies"] == []
    config = app_file["tool"]["flwr"]["app"]["config"]
    assert config["recipe"] == "default"
    assert config["settings"] == "rounds=3 'snapshots=[0,3]'"
    assert Path(config["out"]).is_absolute()
    assert "--enable-supernode-auth" in (folder / "server" / "superlink.sh").read_text()
    assert "--insecure" not in "".join(path.read_text() for path in folder.rglob("*.sh"))


def test_more_nodes_are_added_and_the_others_kept(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    init(folder, "--nodes", "1")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    output = init(folder, "--nodes", "2")
    assert f"wrote {folder / 'node-2'}" in output.replace("\n", "")
    assert all(path.read_bytes() == data for path, data in before.items())
    assert (folder / "server" / "keys" / "node-2.pub").exists()


def test_insecure_must_be_asked_for_and_is_said_aloud(tmp_path: Path) -> None:
    output = init(tmp_path / "open", "--insecure")
    assert "insecure: anybody who reaches the server" in output.replace("\n", " ")
    assert not list((tmp_path / "open").rglob("*.key"))
    with pytest.raises(RunFolderError, match="is an insecure deployment"):
        init(tmp_path / "open", "--nodes", "4")


def test_a_mistake_is_found_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'rounds'"):
        init(tmp_path / "here", "default", "round=3")
    assert not (tmp_path / "here").exists()
    (tmp_path / "thesis.docx").write_text("precious")
    with pytest.raises(RunFolderError, match="is not empty and not a deployment"):
        init(tmp_path)
