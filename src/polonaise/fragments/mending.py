"""Write a damaged fragment again from the log: the same batches make the same object, byte for byte."""

from __future__ import annotations

from collections.abc import AsyncIterable

from polonaise.errors import BatchDamaged, FragmentDamaged
from polonaise.fragments.objects import made_of
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import MendableStore
from polonaise.log.batch import Batch


async def rewrite(store: MendableStore, cluster_key: bytes, name: FragmentName, batches: AsyncIterable[Batch]) -> None:
    """Write a damaged fragment again from the batches of its ids; the object is replaced at once as a whole.

    Raises what `made_again` does, and then nothing was touched, and what the store raises.
    """
    await store.replace(name.path, await made_again(cluster_key, name, batches))


async def made_again(cluster_key: bytes, name: FragmentName, batches: AsyncIterable[Batch]) -> bytes:
    """Return the object that a fragment's name stands for, made of the batches of its ids.

    The digest in the name decides, whatever the log holds. Raises `FragmentDamaged` where the batches make another
    object, and what `batches` raise.
    """
    try:
        made, raw = await made_of(cluster_key, batches)
    except BatchDamaged as error:
        raise FragmentDamaged(f"{name.path} can't be made again of what the log told: {error.text}") from error
    if made != name:
        raise FragmentDamaged(
            f"{name.path} can't be made again: of the log's transactions from {name.first} to {name.last} this version "
            "makes another object. Restore it from a copy; or move it out of the store, and run polonaise archive run, "
            "which writes these ids anew"
        )
    return raw
