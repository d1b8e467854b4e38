"""The one place that touches process-wide settings of torch and Python, and puts them back."""

from __future__ import annotations

import faulthandler
import gc
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from drumline.data.seeds import WINDOW, seed_streams, streams_kept
from drumline.errors import ConfigError

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
REPEATABLE_WORKSPACES = (":4096:8", ":16:8")
"""The two with which cuBLAS promises equal bits (cuBLAS library, Results reproducibility); the first is the faster."""

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Where torch's allocator reads its options, the newest name first."""

COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""Where torch's compiler keeps its work."""

COLLECT_EVERY = 100
"""Updates after which garbage is collected where no log line or evaluation did it: what user code leaves in cycles
between two updates may hold tensors."""

COLLECT_ALL_EVERY = 100
"""Collections after which one looks at all objects, not only at those since the one before."""

NO_REPEATABLE_FORM = re.compile(r"(\S+) does not have a deterministic implementation")
"""What torch says of an operation that it refuses under torch.use_deterministic_algorithms."""


@contextmanager
def process_settings(precision: str, deterministic: bool = False) -> Iterator[None]:
    """Set matrix-product precision, fault handler, compiler cache and determinism for a run.

    fp32 keeps full products; every other precision allows TF32 in what stays float32. All of it, and the random
    streams, is restored afterwards.
    """
    with ExitStack() as stack:
        stack.enter_context(streams_kept())
        stack.enter_context(_products("highest" if precision == "fp32" else "high"))
        stack.enter_context(_faults())
        stack.enter_context(_compiled_kept())
        if deterministic:
            stack.enter_context(_repeatable())
        yield


@contextmanager
def _products(products: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(products)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _faults() -> Iterator[None]:
    enabled = faulthandler.is_enabled()
    if not enabled:
        faulthandler.enable()
    try:
        yield
    finally:
        if not enabled:
            faulthandler.disable()


@contextmanager
def _compiled_kept() -> Iterator[None]:
    """What torch.compile makes goes where the user's other caches are, not into /tmp, which a restart empties.

    A place that the user has named stays.
    """
    if COMPILER_CACHE in os.environ:
        yield
        return
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    os.environ[COMPILER_CACHE] = str(Path(caches).expanduser() / "drumline" / "compiled")
    try:
        yield
    finally:
        os.environ.pop(COMPILER_CACHE, None)


_expandable = False
"""Whether `expandable_segments` has been entered and changed something."""


@contextmanager
def expandable_segments(wanted: bool) -> Iterator[None]:
    """Inside, the allocator of GPU memory makes segments that can grow; enter it before anything is allocated.

    Options that the environment gives it are kept, above all what it says of segments. Does nothing without a GPU, and
    inside of itself.
    """
    global _expandable
    given = next((os.environ[name] for name in ALLOCATOR_VARIABLES if name in os.environ), "")
    if not wanted or _expandable or "expandable_segments" in given or not torch.cuda.is_available():
        yield
        return
    before = f"{given}," if given else ""  # all options are set at once: those left out would be torch's defaults
    set_allocator: Callable[[str], None] = torch._C._accelerator_setAllocatorSettings
    set_allocator(f"{before}expandable_segments:True")
    _expandable = True
    try:
        yield
    finally:
        _expandable = False
        set_allocator(f"{before}expandable_segments:False")


def empty_cache() -> None:
    """Give back the GPU memory that torch's allocator holds unused."""
    torch.cuda.empty_cache()


@contextmanager
def _repeatable() -> Iterator[None]:
    """Only operations that give equal bits each time; torch raises for those that have no such form."""
    cudnn = torch.backends.cudnn
    strict, only_warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    convolutions, searches = cudnn.deterministic, cudnn.benchmark
    workspace = os.environ.get(CUBLAS_WORKSPACE)
    if workspace not in REPEATABLE_WORKSPACES:
        os.environ[CUBLAS_WORKSPACE] = REPEATABLE_WORKSPACES[0]
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=only_warns)
        cudnn.deterministic, cudnn.benchmark = convolutions, searches
        if workspace is None:
            os.environ.pop(CUBLAS_WORKSPACE, None)
        else:
            os.environ[CUBLAS_WORKSPACE] = workspace


@contextmanager
def explain_nondeterministic() -> Iterator[None]:
    """Turn torch's refusal of an operation without a repeatable form into a ConfigError that names the operation."""
    try:
        yield
    except RuntimeError as error:
        explained = nondeterministic(error)
        if explained is None:
            raise
        raise explained from error


def nondeterministic(error: BaseException) -> ConfigError | None:
    """The ConfigError that says what torch refused because of train.deterministic; None for any other error."""
    found = NO_REPEATABLE_FORM.search(str(error))
    if found is None:
        return None
    return ConfigError(
        f"train.deterministic is true, and {found[1]} has no implementation here that gives equal bits each time",
        "compute it by other operations, or set train.deterministic to false",
    )


_collected_before: bool | None = None
"""Whether Python collected garbage by itself before the run that is going on; None: there is no run."""

_collections = 0
"""How often `collect_garbage` did; counted alike on all ranks."""


@contextmanager
def no_collector() -> Iterator[None]:
    """No garbage collection at a moment of Python's choosing: the other ranks would wait for the one that pauses.

    What is there already is set aside (frozen), so that `collect_garbage` looks at what is new.
    """
    global _collected_before, _collections
    outermost = _collected_before is None
    freezes = outermost and not gc.get_freeze_count()
    if outermost:
        _collected_before, _collections = gc.isenabled(), 0
        gc.collect()  # what is garbage already, such as an earlier trainer, would hold its tensors to the end
    if freezes:
        gc.freeze()
    try:
        with _collector(on=False):
            yield
    finally:
        if freezes:
            gc.unfreeze()
        if outermost:
            _collected_before = None


@contextmanager
def _collector(*, on: bool) -> Iterator[None]:
    before = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        yield
    finally:
        (gc.enable if before else gc.disable)()


@contextmanager
def own_collector() -> Iterator[None]:
    """Around code of the user's between two updates, which may run for long: garbage is collected as before the run."""
    with _collector(on=gc.isenabled() if _collected_before is None else _collected_before):
        yield


def collect_garbage(step: int | None = None) -> None:
    """Collect what is new since the last time, where all ranks do; with a step only after every COLLECT_EVERYth.

    Every COLLECT_ALL_EVERYth time everything since the run began: compiled code is hundreds of thousands of objects,
    and to look through them takes a tenth of a second.
    """
    global _collections
    if step is not None and step % COLLECT_EVERY:
        return
    _collections += 1
    gc.collect(2 if _collections % COLLECT_ALL_EVERY == 0 else 1)


def seed_window(seed: int, epoch: int, window: int, first_shard: int, shard: int = 0) -> None:
    """Set the random streams of one window, for this process's shard number `shard` after `first_shard`.

    A function of seed, position and shard, so that a resumed window draws what it would have drawn.
    """
    seed_streams(WINDOW, seed, first_shard + shard, epoch, window)
