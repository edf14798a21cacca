"""Which node speaks for which client: the first that joined for it, known by its key from then on.

Two files are kept. ``joined.json`` in the run folder holds what clients told when they joined, so that a
run goes on without those who are absent, and nobody comes back as somebody else. ``nodes.json`` beside the
run folder holds the keys of the nodes, for all runs of the deployment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedcue.errors import ClientError, RunFolderError
from fedcue.flower.messages import Member
from fedcue.record.files import read_json, write_json


@dataclass
class Register:
    """The clients that have joined, and where they are."""

    joined: Path
    owners: Path
    members: dict[int, Member] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    """From client to the hash of the key of its node."""
    places: dict[int, int] = field(default_factory=dict)
    """From client to node, as of this process."""
    spent: dict[int, float] = field(default_factory=dict)
    """What the clients' images released before, as reported when they last joined."""

    @classmethod
    def of(cls, folder: Path) -> Register:
        """Return what is known of the clients of a run and of their deployment."""
        register = cls(folder / "joined.json", folder.parent / "nodes.json")
        try:
            found = _read(register.joined)
            register.members = {int(client): Member(**values) for client, values in found.items()}
            register.keys = {int(client): str(key) for client, key in _read(register.owners).items()}
        except (TypeError, ValueError) as error:
            raise RunFolderError(
                f"{register.joined} or {register.owners} is damaged. Put it back."
            ) from error
        return register

    def place(self, node: int, key: str, members: Sequence[Member], present: Collection[int]) -> None:
        """Let a node speak for some clients, or raise a ``ClientError`` if they are another's."""
        others = [*members, *self.members.values()]
        for member in members:
            if member.identity and any(o.identity == member.identity and o.id != member.id for o in others):
                raise ClientError(f"its client {member.id} has the key of another client for secure sums")
            other, owner = self.places.get(member.id), self.keys.get(member.id, "")
            if owner and owner != key:
                raise ClientError(
                    f"its client {member.id} belongs to the node with the key {owner[:12]} (see nodes.json)"
                )
            if other is not None and other != node and other in present:
                raise ClientError(f"its client {member.id} is already on node {other}")
            before = self.members.get(member.id)
            if before is not None and replace(before, spent=0.0) != replace(member, spent=0.0):
                raise ClientError(f"its client {member.id} joined this run with other sizes, name or key")
        for member in members:
            self.places[member.id], self.spent[member.id] = node, member.spent
        new = {member.id: member for member in members if member.id not in self.members}
        if new:
            self.members |= new
            self._write_members()
        if key and any(self.keys.get(member.id) != key for member in members):
            self.keys |= {member.id: key for member in members}
            write_json(self.owners, {str(client): self.keys[client] for client in sorted(self.keys)})

    def leave_out(self, client: int, forget: bool) -> None:
        """Stop asking a client; with ``forget`` as if it had never joined."""
        self.places.pop(client, None)
        self.spent.pop(client, None)
        if forget and client in self.members:
            del self.members[client]
            self._write_members()

    def _write_members(self) -> None:
        members = {str(client): asdict(self.members[client]) for client in sorted(self.members)}
        write_json(self.joined, members)


def _read(path: Path) -> Mapping[str, Any]:
    found = read_json(path) if path.is_file() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not a table")
    return found
