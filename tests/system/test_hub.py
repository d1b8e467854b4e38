"""Models and tokenizers by their names on the hub, from a server on this machine that speaks its API."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import tokenizers
import torch
import transformers

from drumline.config.model import HuggingFaceModel
from drumline.data import hub as hub_files
from drumline.data.hub import Hub
from drumline.data.tokenizers import load_tokenizer
from drumline.errors import ConfigError, DataError
from drumline.models.hub import find_folder
from drumline.models.huggingface import load_model
from tests.hub_server import COMMIT, FakeHub, Repository, serving

pytestmark = pytest.mark.system

NAMES: dict[str, dict[str, Any]] = {
    "org/whole": {},
    "org/private": {"token": "hf_secret"},
    "org/gated": {"gated": True},
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with a tiny model, as whole, private and gated, and one with pickled weights only."""
    folder = tmp_path / "repository"
    torch.manual_seed(0)
    shape = transformers.GPT2Config(vocab_size=40, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(shape).save_pretrained(folder)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "c": 2}, "a"))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "code.py").write_text("")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"of no use")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text((folder / "config.json").read_text())
    (pickled / "pytorch_model.bin").write_bytes(b"a pickle")
    repositories = {name: Repository(folder, **options) for name, options in NAMES.items()}
    with serving({**repositories, "org/pickled": Repository(pickled)}) as found:
        set_online(monkeypatch)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        yield found
        huggingface_hub.close_session()


def set_online(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package had been imported where the hub may be asked."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    huggingface_hub.close_session()


def model(folder: Path, name: str = "org/whole", **more: Any) -> HuggingFaceModel:
    return HuggingFaceModel(path=name, cache_dir=folder / "cache", **more)


def test_a_model_and_its_tokenizer_are_fetched_once_and_only_what_is_needed(hub: FakeHub, tmp_path: Path) -> None:
    found: Any = load_model(model(tmp_path), "causal")
    saved = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "repository")
    assert torch.equal(found.transformer.wte.weight, saved.transformer.wte.weight)
    assert sorted(hub.sent) == ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]
    assert find_folder(model(tmp_path)).name == COMMIT
    assert load_tokenizer("org/whole", Hub(cache_dir=tmp_path / "cache")).vocab_size == 3
    assert len(hub.sent) == 4


def test_a_shape_alone_fetches_no_weights(hub: FakeHub, tmp_path: Path) -> None:
    load_model(model(tmp_path, random_weights=True), "causal")
    load_model(model(tmp_path), "causal", values=False)
    assert "model.safetensors" not in hub.sent
    assert find_folder(model(tmp_path, trust_remote_code=True), weights=False).joinpath("code.py").is_file()


def test_a_revision(hub: FakeHub, tmp_path: Path) -> None:
    assert find_folder(model(tmp_path, revision="other")).name == COMMIT[::-1]
    with pytest.raises(ConfigError, match=r"model\.path: org/whole has no revision 'absent'"):
        find_folder(model(tmp_path, revision="absent"))


def test_a_run_goes_on_with_the_commit_that_it_began_with(hub: FakeHub, tmp_path: Path) -> None:
    assert find_folder(model(tmp_path), weights=False).name == COMMIT
    hub.main = COMMIT[::-1]
    assert find_folder(model(tmp_path)).name == COMMIT
    hub_files._commits.clear()
    assert find_folder(model(tmp_path)).name == COMMIT[::-1]


def test_a_token_is_read_from_the_variable_that_is_named(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = model(tmp_path, "org/private", token_variable="MY_TOKEN")
    with pytest.raises(ConfigError, match=r"no token \(\$MY_TOKEN is not set\)\n.*needs a token in \$MY_TOKEN"):
        find_folder(section)
    monkeypatch.setenv("MY_TOKEN", "hf_wrong")
    with pytest.raises(ConfigError, match=r"can be read with \$MY_TOKEN") as refused:
        find_folder(section)
    assert "hf_wrong" not in str(refused.value)
    monkeypatch.setenv("MY_TOKEN", "hf_secret")
    assert find_folder(section).is_dir()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/absent", "model.path: org/absent is neither a folder here nor a repository on the hub"),
        ("org/gated", "model.path: org/gated is gated on the hub"),
        ("org/pickled", "model.path org/pickled has no safetensors on the hub"),
        ("org/wh..ole", "model.path: org/wh..ole is neither a folder here nor a name on the hub"),
        ("./absent", "model.path ./absent is no Hugging Face folder"),
    ],
)
def test_what_cannot_be_had_is_told(hub: FakeHub, tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find_folder(model(tmp_path, name))
    assert refused.value.problem.startswith(said)


def test_no_network(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the cache is used, and what is not is told."""
    find_folder(model(tmp_path), weights=False)
    hub_files._commits.clear()
    asked = hub.requests
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    assert find_folder(model(tmp_path), weights=False).name == COMMIT
    for name in ("org/whole", "org/other"):
        with pytest.raises(DataError, match=rf"model\.path: {name} is no folder here, HF_HUB_OFFLINE is set"):
            find_folder(model(tmp_path, name))
    assert hub.requests == asked
    set_online(monkeypatch)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match="the hub cannot be reached"):
        find_folder(model(tmp_path, "org/other"))


def test_a_cache_that_cannot_be_written(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match=r"cache .* cannot be written"):
        find_folder(model(tmp_path))


def fetch_in_a_process(folder: Path, ready: Any, names: Any) -> None:
    """One of the ranks of a machine."""
    huggingface_hub.constants.HF_HUB_OFFLINE = False
    ready.wait()
    names.put(find_folder(model(folder)).name)


def test_the_processes_of_a_machine_fetch_once(hub: FakeHub, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, names = context.Barrier(3), context.SimpleQueue()
    ranks = [context.Process(target=fetch_in_a_process, args=(tmp_path, ready, names)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    assert [names.get() for _ in ranks] == [COMMIT] * 3
    for rank in ranks:
        rank.join()
    assert sorted(hub.sent) == ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]


def test_weights_in_several_files(hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    (folder / "model.safetensors").unlink()
    saved = transformers.GPT2LMHeadModel(transformers.AutoConfig.from_pretrained(folder))
    saved.save_pretrained(folder, max_shard_size="2KB")
    assert len(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]) > 1
    found: Any = load_model(model(tmp_path), "causal")
    assert torch.equal(found.transformer.wte.weight, saved.transformer.wte.weight)
