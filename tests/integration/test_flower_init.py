"""``fedcue flower init``: what it writes, who may read it, what it refuses."""

from __future__ import annotations

import errno
import stat
import tomllib
from pathlib import Path
from typing import Any

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
from fedcue.errors import CannotWrite, ConfigError, RunFolderError


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


def test_a_nodes_superexec_has_its_supernode_for_a_parent_and_reaches_it_on_loopback(tmp_path: Path) -> None:
    init(tmp_path / "here", "--nodes", "2")
    lines = (tmp_path / "here" / "node-2" / "supernode.sh").read_text().splitlines()
    assert lines[-3] == "port=9095"
    assert lines[-2].endswith('superexec --runtime-api-address "127.0.0.1:$port" --parent-pid $$ &')
    assert lines[-1].startswith("exec flower-supernode ")
    assert "--isolation process " in lines[-1]
    assert "--host 127.0.0.1 --port $port " in lines[-1]


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
    assert "insecure: whoever uses this machine" in output.replace("\n", " ")
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


HOSTS = [
    "127.0.0.1",
    "127.0.0.2",
    "localhost",
    "::1",
    "10.1.2.3",
    "2001:db8::1",
    "server.example",
    "0.0.0.0",
    "::",
]


@pytest.mark.parametrize("host", HOSTS)
def test_the_superlink_listens_on_loopback_whatever_the_host(host: str, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    init(folder, "--nodes", "1", "--host", host, "--port", "7000", "--superlink-port", "7001")
    gate, superlink = (folder / "server" / "superlink.sh").read_text().splitlines()[-1].split(" -- ")
    assert superlink.startswith("flower-superlink ")
    assert superlink.count("--host") == 1
    assert "--host 127.0.0.1 --port 7001" in superlink
    assert "--port 7000 --superlink-port 7001" in gate
    config = tomllib.loads((folder / "server" / "config.toml").read_text())
    assert config["superlink"]["fedcue"]["address"] == "127.0.0.1:7001"
    written = f"[{host}]:7000" if ":" in host else f"{host}:7000"
    assert f"--superlink {written} " in (folder / "node-1" / "supernode.sh").read_text()


@pytest.mark.parametrize("host", HOSTS[4:])
def test_insecure_refuses_any_address_but_loopback(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"listens on loopback only, but --host is"):
        init(tmp_path / "here", "--insecure", "--host", host)
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("host", HOSTS[:4])
def test_insecure_listens_on_the_loopback_address_given(host: str, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    init(folder, "--insecure", "--host", host, "--port", "7000")
    command = (folder / "server" / "superlink.sh").read_text().splitlines()[-1]
    bound = "127.0.0.1" if host == "localhost" else host
    assert command.startswith(f"exec flower-superlink --insecure --host {bound} --port 7000 ")


@pytest.mark.parametrize("host", ["", "a b", "$(id)", "a;b", "server.example:8000/x"])
def test_a_host_is_a_name_or_an_address(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a name or an address"):
        init(tmp_path / "here", "--host", host)


def test_gate_and_superlink_need_a_port_each(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Give another --superlink-port"):
        init(tmp_path / "here", "--port", "8001")


def test_a_deployment_without_a_gate_gets_no_more_nodes(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    init(folder, "--nodes", "1")
    script = folder / "server" / "superlink.sh"
    script.write_text(script.read_text().replace("python3 -P -m fedcue.flower.gate", "exec"))
    with pytest.raises(RunFolderError, match="without a gate"):
        init(folder, "--nodes", "2")


@pytest.mark.parametrize("there", [0, 1])
def test_a_full_disk_leaves_no_half_of_a_server_or_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int
) -> None:
    folder, writes, told = tmp_path / "here", [0, 0], set[str]()
    if there:
        init(folder, "--nodes", "1")
    for name in ("write_text", "write_bytes"):
        plain = getattr(Path, name)

        def full(path: Path, content: Any, plain: Any = plain) -> int:
            writes[0] += 1
            if writes[0] == writes[1]:
                raise OSError(errno.ENOSPC, "No space left on device")
            return int(plain(path, content))

        monkeypatch.setattr(Path, name, full)
    for last in range(1, 40):
        writes[:] = [0, last]
        try:
            init(folder, "--nodes", "2")
            break
        except CannotWrite as error:
            told.add(str(error).split(":")[0])
            found = {path.name for path in folder.iterdir()}
            assert found in (set(), {"ca", "server"}, {"ca", "server", "node-1"})
            keys = {path.stem for path in folder.glob("server/keys/*")}
            assert keys == {path.name for path in folder.glob("node-*")}
    assert last >= 4
    assert told & {f"Cannot write {folder / name}" for name in ("ca", "server", "node-1", "node-2")}
    assert {path.name for path in folder.iterdir()} == {"ca", "server", "node-1", "node-2"}
