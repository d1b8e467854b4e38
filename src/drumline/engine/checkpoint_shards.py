"""The sharded form of a checkpoint: each rank's parts, by torch.distributed.checkpoint (DCP).

Tensors go into DCP's files, all else into one small file, since DCP would pickle it. DCP's list of what lies where,
`.metadata`, is a pickle: `manifest.check` sees to it that nobody else's is read. Importing DCP takes half a second, so
only what needs it imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import (
    CheckpointException,
    DefaultLoadPlanner,
    DefaultSavePlanner,
    FileSystemReader,
    FileSystemWriter,
    save,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from drumline.engine.checkpoint_write import reason_of
from drumline.parallel.parts import Part, identity, mapped
from drumline.parallel.parts import Path as Keys

METADATA = ".metadata"
TENSOR = "drumline.tensor"
"""Key of what stands for a tensor among the plain values: its name in DCP's files."""

Parts = dict[str, Part]
"""By name in DCP's files."""


def split(state: Any) -> tuple[Any, Parts]:
    """The state with names in the place of tensors, and the tensors; those without dimensions stay where they are.

    What is one tensor under two names is there once.
    """
    parts: Parts = {}
    names: dict[Any, str] = {}

    def take(path: Keys, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor | Part) or not leaf.shape:
            return leaf
        tensor = leaf.tensor if isinstance(leaf, Part) else leaf
        key = identity(tensor) if tensor.numel() else id(tensor)
        if key not in names:
            names[key] = "/".join(key.replace("/", "//") for key in path)
            parts[names[key]] = leaf if isinstance(leaf, Part) else whole_part(leaf)
        return {TENSOR: names[key]}

    return mapped(state, take), parts


def whole_part(tensor: Tensor) -> Part:
    """All of a tensor."""
    return Part(tensor.detach(), tensor.shape, 0)


def joined(plain: Any, tensors: Mapping[str, Any]) -> Any:
    """The state that `split` took apart."""
    if isinstance(plain, dict):
        if plain.keys() == {TENSOR}:
            return tensors[plain[TENSOR]]
        return {key: joined(value, tensors) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        items = [joined(value, tensors) for value in plain]
        return items if isinstance(plain, list) else tuple(items)
    return plain


def offsets(part: Part) -> torch.Size:
    """Where in the whole tensor the part begins."""
    return torch.Size([part.begin, *[0] * (len(part.shape) - 1)])


class SaveParts(DefaultSavePlanner):
    """Plans parts that know their own place; what several ranks have is written by one of them."""

    def set_up_planner(
        self, state_dict: Any, storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        """Take the parts as they are."""
        self.state_dict, self.is_coordinator, self.mappings = state_dict, is_coordinator, {}

    def create_local_plan(self) -> SavePlan:
        """One item for each part of this rank."""
        state: Mapping[str, Part] = self.state_dict
        self.plan = SavePlan([self._item(name, part) for name, part in state.items() if part.tensor.numel()])
        return self.plan

    def _item(self, name: str, part: Part) -> WriteItem:
        chunk = ChunkStorageMetadata(offsets(part), part.tensor.size())
        properties = TensorProperties.create_from_tensor(part.tensor)
        data = TensorWriteData(chunk, properties, part.shape)
        return WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data)

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """The tensor of a part."""
        part: Part = self.state_dict[index.fqn]
        return part.tensor


class LoadParts(DefaultLoadPlanner):
    """Plans reads into parts, whichever way the saved ones were cut."""

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        """Take the parts as they are."""
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        """What of the saved parts falls into this rank's."""
        state: Mapping[str, Part] = self.state_dict
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, part in state.items():
            saved = self.metadata.state_dict_metadata[name]
            assert isinstance(saved, TensorStorageMetadata)
            if part.tensor.numel():
                chunk = ChunkStorageMetadata(offsets(part), part.tensor.size())
                items += create_read_items_for_chunk_list(name, saved, [chunk])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """The tensor of a part."""
        part: Part = self.state_dict[index.fqn]
        return part.tensor


def save_parts(folder: Path, parts: Parts, group: dist.ProcessGroup | None) -> None:
    """Write this rank's parts into the folder, all ranks of the group together; None: this process alone."""
    # The parts are on the host already. With bytes to copy ahead torch waits for the stream of this thread's device,
    # which is GPU 0 in a thread of our own, whatever the rank's GPU.
    writer = FileSystemWriter(folder, sync_files=True, per_thread_copy_ahead=0)
    planner = SaveParts(flatten_state_dict=False)
    if group is not None:
        try:
            save(parts, storage_writer=writer, planner=planner, process_group=group)
        except CheckpointException as failed:  # no Exception, and with every rank's traceback in it
            rank, error = min((rank, failure[0]) for rank, failure in failed.failures.items())
            raise RuntimeError(f"rank {rank}: {reason_of(error)}") from failed
        return
    planner.set_up_planner(parts, writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    (plan,) = writer.prepare_global_plan(plans)
    results = writer.write_data(planner.finish_plan(plan), planner)
    results.wait()
    writer.finish(metadata, [results.value()])


def files_of(folder: Path, rank: int, *, committer: bool) -> list[str]:
    """The files of this rank among the parts in the folder; the list of all is each committer's."""
    own = sorted(file.name for file in folder.iterdir() if file.name.startswith(f"__{rank}_"))
    return [*own, METADATA] if committer else own


def read_parts(folder: Path, plain: Any, room_for: Callable[[Any], Any]) -> Any:
    """The state that was split into `plain` and the parts in the folder; this rank reads by itself.

    room_for: from the state, with tensors on the meta device, to the same with a Part for each that shall not be whole.
    """
    reader = FileSystemReader(folder)
    metadata = reader.read_metadata()
    meta = {
        name: torch.empty(saved.size, dtype=saved.properties.dtype, device="meta")
        for name, saved in metadata.state_dict_metadata.items()
        if isinstance(saved, TensorStorageMetadata)
    }
    names = {id(tensor): name for name, tensor in meta.items()}
    wanted, name_at = joined(plain, meta), dict[Keys, str]()

    def note(path: Keys, leaf: Any) -> None:
        if id(leaf) in names:
            name_at[path] = names[id(leaf)]

    mapped(wanted, note)
    parts: Parts = {}

    def place(path: Keys, leaf: Any) -> Any:
        name = name_at.get(path)
        if name is None:
            return leaf
        if name not in parts:
            parts[name] = leaf if isinstance(leaf, Part) else whole_part(torch.empty(leaf.shape, dtype=leaf.dtype))
        return parts[name] if isinstance(leaf, Part) else parts[name].tensor

    state = mapped(room_for(wanted), place)
    planner = LoadParts()
    planner.set_up_planner(parts, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    reader.read_data(planner.finish_plan(plan), planner).wait()
    return state
