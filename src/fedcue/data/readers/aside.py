"""What lies in a folder of images and is not read: told, not passed over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedcue.data.image_sources import FORMATS
from fedcue.data.readers.folders import Item, files, images, suffix
from fedcue.errors import many

UNREAD = frozenset(
    {".arw", ".avif", ".cr2", ".dcm", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".svs"}
)
"""Suffixes of images in formats that are not read."""

_SHOWN = 6
"""Things that are named."""


def left_aside(root: Path, items: Iterable[Item]) -> tuple[str, ...]:
    """Return what a user should know of the images in ``root`` that are not among the items."""
    notes = []
    folders, strays = _unread_places(root, items)
    if folders:
        counted = [f"{place} ({many(number, 'image')})" for place, number in folders.items()]
        notes.append(f"Folders left aside: {named(counted)}. They lie in {root}.")
    if strays:
        notes.append(f"Images left aside, as no folder says what they show: {named(strays)} in {root}.")
    return (*notes, *unread_formats(root))


def unread_formats(root: Path) -> tuple[str, ...]:
    """Return a note on the images in formats that are not read, if there are any."""
    counts = Counter(suffix(path.name) for path in files(root, UNREAD))
    if not counts:
        return ()
    found = ", ".join(f"{many(number, 'image')} {name}" for name, number in sorted(counts.items()))
    return (f"{root} also holds {found}, which are left aside: {', '.join(FORMATS)} are read. Convert them.",)


def _unread_places(root: Path, items: Iterable[Item]) -> tuple[dict[str, int], list[str]]:
    """Return the topmost folders none of whose images is read, with their number, and other single images."""
    read = {item.path for item in items}
    busy = {root}
    for place in {path.parent for path in read}:
        busy.update((place, *place.parents))
    counts: Counter[str] = Counter()
    strays = []
    for path in images(root):
        if path in read:
            continue
        if path.parent in busy:
            strays.append(path.relative_to(root).as_posix())
        else:
            topmost = next(above for above in path.parents if above.parent in busy)
            counts[topmost.relative_to(root).as_posix()] += 1
    return dict(counts), strays


def named(things: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(things) - _SHOWN
    return ", ".join(things[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
