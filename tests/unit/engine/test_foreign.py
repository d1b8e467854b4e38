"""Runs begin with what people have; reading runs no code of the file, and lands on the CPU (case 15)."""

from __future__ import annotations

import argparse
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from drumline.engine.weight_files import read_file, write_safetensors
from drumline.engine.weight_sources import read_weights
from drumline.errors import DataError
from drumline.models.folder import keep_shape, read_pretrained, write_pretrained
from tests.unit.engine.training import assert_same, events, make_model, state_of, trainer_of


def other_model(seed: int = 5) -> nn.Module:
    """The model of the small run with other weights."""
    model = make_model()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, dtype=p.dtype, generator=generator))
    return model


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer after an update."""
    model = other_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    model(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    optimizer.step()
    return model, optimizer


def lightning(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **more: Any) -> dict[str, Any]:
    """What Lightning saves of a module that holds `model` as its net."""
    weights = {f"net.{name}": value for name, value in model.state_dict().items()}
    return {
        "state_dict": {**weights, "criterion.weight": torch.ones(2)},
        "optimizer_states": [] if optimizer is None else [optimizer.state_dict()],
        "lr_schedulers": [],
        "epoch": 3,
        "global_step": 12,
        "pytorch-lightning_version": "2.5.0",
        **more,
    }


def save_index(model: nn.Module, folder: Path) -> Path:
    """Two files and the index of what is in which."""
    weights = model.state_dict()
    parts = {
        "model-00001-of-00002.safetensors": list(weights)[:1],
        "model-00002-of-00002.safetensors": list(weights)[1:],
    }
    for file, names in parts.items():
        save_file({name: weights[name] for name in names}, folder / file)
    places = {name: file for file, names in parts.items() for name in names}
    index = folder / "model.safetensors.index.json"
    index.write_text(str({"weight_map": places}).replace("'", '"'))
    return index


def save_old(model: nn.Module, folder: Path) -> Path:
    torch.save(model.state_dict(), folder / "w.pt", _use_new_zipfile_serialization=False)
    return folder / "w.pt"


def saved(content: Callable[[nn.Module], Any], name: str) -> Callable[[nn.Module, Path], Path]:
    def save(model: nn.Module, folder: Path) -> Path:
        torch.save(content(model), folder / name)
        return folder / name

    return save


def save_tensors(model: nn.Module, folder: Path) -> Path:
    save_file(model.state_dict(), folder / "w.safetensors")
    return folder / "w.safetensors"


def save_index_alone(model: nn.Module, folder: Path) -> Path:
    save_index(model, folder)
    return folder


FORMS: dict[str, tuple[str, Callable[[nn.Module, Path], Path]]] = {
    "state_dict": ("weights", saved(lambda m: m.state_dict(), "w.pt")),
    "without suffix": ("weights", saved(lambda m: m.state_dict(), "weights")),
    "of DataParallel": ("weights", saved(lambda m: nn.DataParallel(m).state_dict(), "w.pth")),
    "format of torch 1.5": ("weights", save_old),
    "model_state_dict": ("checkpoint", saved(lambda m: {"model_state_dict": m.state_dict(), "epoch": 3}, "w.pth")),
    "model": ("checkpoint", saved(lambda m: {"model": m.state_dict(), "epoch": 3}, "w.bin")),
    "state_dict inside": ("checkpoint", saved(lambda m: {"epoch": 3, "state_dict": m.state_dict()}, "w.tar")),
    "net": ("checkpoint", saved(lambda m: {"net": m.state_dict(), "epoch": 3, "acc": 0.9}, "w.pt")),
    "lightning": ("lightning", saved(lightning, "w.ckpt")),
    "safetensors": ("weights", save_tensors),
    "index": ("weights", save_index),
    "folder with index": ("weights", save_index_alone),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_run_begins_with_weights_of_any_form(tmp_path: Path, form: str) -> None:
    source, save = FORMS[form]
    (tmp_path / "given").mkdir()
    expected = other_model()
    path = save(expected, tmp_path / "given")
    found = read_weights(path)
    assert (found.source, found.epoch) == (source, 3 if source in ("checkpoint", "lightning") else None)
    with trainer_of(tmp_path / "run") as trainer:
        trainer.load(path)
        assert_same(state_of(trainer.model), state_of(expected))
        assert trainer.fit().steps == 3
    assert "initial" in events(tmp_path / "run")


def momentum_of(trainer: Any) -> list[Tensor]:
    (learner,) = trainer._run.strategy.state()["learners"].values()
    return [values["momentum_buffer"] for values in learner["optimizer"]["state"].values()]


@pytest.mark.parametrize("where", ["checkpoint", "lightning", "accelerate"])
def test_the_optimizer_comes_along_where_it_fits(tmp_path: Path, where: str) -> None:
    model, optimizer = trained()
    path = tmp_path / "w.pt"
    if where == "accelerate":
        path = tmp_path / "given"
        accelerate: Any = importlib.import_module("accelerate")  # without types
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.prepare(model, optimizer)
        accelerator.save_state(str(path))
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    elif where == "lightning":
        torch.save(lightning(model, optimizer), path)
    else:
        torch.save({"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}, path)
    own = make_model()
    with trainer_of(
        tmp_path / "run", model=own, optimizer=torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.5)
    ) as t:
        t.load(path)
        expected = [values["momentum_buffer"] for values in optimizer.state.values()]
        torch.testing.assert_close(momentum_of(t), expected, rtol=0, atol=0)
        (learner,) = t._run.strategy.state()["learners"].values()
        assert learner["optimizer"]["param_groups"][0]["momentum"] == 0.5  # settings are this run's
        path.write_bytes(b"") if path.is_file() else (path / "optimizer.bin").write_bytes(b"")
        assert t.fit().steps == 3


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda m: torch.optim.Adam(m.parameters()), "another kind"),
        (lambda m: torch.optim.SGD([{"params": [p]} for p in m.parameters()], momentum=0.9), "groups"),
        (lambda m: torch.optim.SGD(reversed(list(m.parameters())), momentum=0.9), "momentum_buffer of parameter 0"),
    ],
)
def test_an_optimizer_that_does_not_fit_begins_anew_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[nn.Module], torch.optim.Optimizer], why: str
) -> None:
    model = other_model()
    optimizer = make(model)
    model(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    before = state_of(model)
    optimizer.step()
    torch.save({"model": before, "optimizer": optimizer.state_dict()}, tmp_path / "w.pt")
    own = make_model()
    with trainer_of(tmp_path / "run", model=own, optimizer=torch.optim.SGD(own.parameters(), 0.1, 0.9)) as trainer:
        with caplog.at_level(logging.WARNING, "drumline"):
            trainer.load(tmp_path / "w.pt")
        assert_same(state_of(trainer.model), before)
        assert trainer.fit().steps == 3
    assert [why in record.getMessage() for record in caplog.records] == [True]


def test_a_checkpoint_or_run_of_ours_gives_its_weights_to_a_new_run(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "first") as trainer:
        trainer.fit()
        path = trainer.save()
        trainer._run.checkpoints.finish(trainer._run)
        expected, momentum = state_of(trainer.model), momentum_of(trainer)
    for number, initial in enumerate((path, tmp_path / "first")):
        with trainer_of(tmp_path / f"later{number}", checkpoint={"initial": str(initial)}) as trainer:
            assert trainer._run.progress.step == 0
            assert_same(state_of(trainer.model), expected)
            torch.testing.assert_close(momentum_of(trainer), momentum, rtol=0, atol=0)


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_weights(path)
    return f"{caught.value.problem} | {caught.value.fix}"


def test_what_could_run_code_is_refused_with_its_name(tmp_path: Path) -> None:
    torch.save(make_model(), tmp_path / "model.pt")
    assert "torch.nn.modules.container.Sequential" in refused(tmp_path / "model.pt")
    torch.save(lightning(make_model(), hyper_parameters=argparse.Namespace(a=1)), tmp_path / "a.ckpt")
    text = refused(tmp_path / "a.ckpt")
    assert "argparse.Namespace" in text
    assert "state_dict" in text


def test_damaged_and_other_files_are_refused(tmp_path: Path) -> None:
    torch.save(make_model().state_dict(), tmp_path / "whole.pt")
    save_file(make_model().state_dict(), tmp_path / "whole.safetensors")
    for name in ("whole.pt", "whole.safetensors"):
        cut = tmp_path / f"cut-{name}"
        cut.write_bytes((tmp_path / name).read_bytes()[:-20])
        assert "is damaged" in refused(cut)
    (tmp_path / "empty.pt").write_bytes(b"")
    assert "is damaged" in refused(tmp_path / "empty.pt")
    (tmp_path / "text.bin").write_text("no weights at all")
    assert "text.bin" in refused(tmp_path / "text.bin")
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "git lfs pull" in refused(tmp_path / "model.safetensors")
    assert "no file or folder" in refused(tmp_path / "none.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    assert "holds a list" in refused(tmp_path / "list.pt")
    torch.save({"weights": make_model().state_dict(), "epoch": 1}, tmp_path / "other.pt")
    assert "weights, epoch" in refused(tmp_path / "other.pt")
    both = {"model": make_model().state_dict(), "net": make_model().state_dict()}
    torch.save(both, tmp_path / "both.pt")
    assert "both model and net" in refused(tmp_path / "both.pt")


def test_an_index_must_name_what_lies_beside_it(tmp_path: Path) -> None:
    index = save_index(make_model(), tmp_path)
    index.write_text(index.read_text().replace("model-00001", "../model-00001"))
    assert "in another folder" in refused(index)
    index.write_text('{"weight_map": {"a": "model-00002-of-00002.safetensors"}}')
    assert "in none of its files: a" in refused(index)
    index.write_text("[]")
    assert "no index" in refused(index)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ((), "holds no file of weights"),
        (("optimizer.bin", "scheduler.pt", "random_states_0.pkl"), "holds no file of weights"),
        (("epoch=1.ckpt", "epoch=2.ckpt"), "several files of weights: epoch=1.ckpt, epoch=2.ckpt"),
        (("model.safetensors", "model_1.safetensors"), "several files of weights"),
        (("adapter_config.json", "adapter_model.safetensors"), "merge it into its model"),
        (("zero_to_fp32.py", "latest"), "DeepSpeed"),
        (("__0_0.distcp", ".metadata"), "dcp_to_torch"),
    ],
)
def test_a_folder_that_leaves_open_what_is_meant_is_refused(tmp_path: Path, files: tuple[str, ...], why: str) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"")
    assert why in refused(tmp_path)


def test_of_lightnings_files_the_last_is_read(tmp_path: Path) -> None:
    for name in ("epoch=1.ckpt", "epoch=2.ckpt", "last.ckpt"):
        torch.save(lightning(other_model(), global_step=int(name == "last.ckpt")), tmp_path / name)
    assert read_weights(tmp_path).source == "lightning"


def refused_by_a_run(folder: Path, weights: Mapping[str, Any], model: nn.Module | None = None) -> str:
    torch.save(dict(weights), folder / "w.pt")
    with trainer_of(folder / "run", model=model) as trainer:
        before = state_of(trainer.model)
        with pytest.raises(DataError, match="does not fit the model") as caught:
            trainer.load(folder / "w.pt")
        assert_same(state_of(trainer.model), before)
    return caught.value.problem


def test_other_names_leave_the_run_as_it_was(tmp_path: Path) -> None:
    weights = {"other" if name == "3.bias" else name: value for name, value in other_model().state_dict().items()}
    assert "3.bias" in refused_by_a_run(tmp_path, weights)


def test_other_shapes_leave_the_run_as_it_was(tmp_path: Path) -> None:
    weights = {**other_model().state_dict(), "3.bias": torch.zeros(2)}
    assert refused_by_a_run(tmp_path, weights).endswith("3.bias is [2] there and [1] here")


def test_two_weights_for_what_is_one_here_are_refused(tmp_path: Path) -> None:
    class Tied(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 1))
            self[1].weight = self[0].weight
            self.double()

    weights = Tied().state_dict()
    weights["1.weight"] = weights["1.weight"] + 1
    assert "0.weight and 1.weight are one tensor here" in refused_by_a_run(tmp_path, weights, Tied())


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Where each call of torch.load and of safetensors puts its tensors."""
    seen: list[Any] = []
    load, safe_open = torch.load, safetensors.safe_open

    def watched_load(*args: Any, **kwargs: Any) -> Any:
        seen.append((kwargs.get("map_location"), kwargs.get("weights_only")))
        return load(*args, **kwargs)

    def watched_open(*args: Any, **kwargs: Any) -> Any:
        seen.append((kwargs.get("device"), True))
        return safe_open(*args, **kwargs)

    monkeypatch.setattr(torch, "load", watched_load)
    monkeypatch.setattr(safetensors, "safe_open", watched_open)
    yield seen


def test_every_load_names_the_cpu_and_reads_tensors_only(tmp_path: Path, devices: list[Any]) -> None:
    """Case 15: no rank may touch GPU 0 because a file's tensors were saved there."""
    for number, (_, save) in enumerate(FORMS.values()):
        (tmp_path / f"{number}").mkdir()
        path = save(other_model(), tmp_path / f"{number}")
        seen = len(devices)
        read_weights(path)
        assert len(devices) > seen
    model, optimizer = trained()
    folder = tmp_path / "accelerate"
    folder.mkdir()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    torch.save(optimizer.state_dict(), folder / "optimizer.bin")
    assert read_weights(folder).optimizer is not None
    with trainer_of(tmp_path / "run") as trainer:
        path = trainer.save()
        trainer._run.checkpoints.finish(trainer._run)
        trainer.load(path)
    assert set(devices) == {("cpu", True)}


def tiny_gpt2(**changes: Any) -> Any:
    torch.manual_seed(0)
    shape = {"vocab_size": 40, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    return transformers.GPT2Config(**shape, bos_token_id=38, eos_token_id=39, **changes)


def test_a_hugging_face_folder_goes_into_its_class_and_comes_out_again(tmp_path: Path) -> None:
    """Its head is tied, so that the file has one name less than the model."""
    first = transformers.GPT2LMHeadModel(tiny_gpt2())
    first.save_pretrained(tmp_path / "given")
    given = read_weights(tmp_path / "given")
    assert given.source == "huggingface"
    assert "lm_head.weight" not in given.model
    later = transformers.GPT2LMHeadModel(tiny_gpt2())
    found = read_pretrained(later, tmp_path / "given")
    assert found is not None
    assert_same(found, first.state_dict())
    compiled: Any = torch.compile(first, backend=lambda graph, inputs: graph.forward)
    keep_shape(compiled, tmp_path / "shape")
    (tmp_path / "out").mkdir()
    assert write_pretrained(first.state_dict(), tmp_path / "shape", tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(again) is transformers.GPT2LMHeadModel
    assert_same(again.state_dict(), first.state_dict())
    assert again.config.use_cache is True


def test_names_that_a_folder_has_without_the_head_are_found_by_transformers(tmp_path: Path) -> None:
    """As in GPT-2's own folder, whose weights are those of the body."""
    body = transformers.GPT2Model(tiny_gpt2())
    body.save_pretrained(tmp_path)
    whole = transformers.GPT2LMHeadModel(tiny_gpt2())
    found = read_pretrained(whole, tmp_path)
    assert found is not None
    assert torch.equal(found["transformer.wte.weight"], body.state_dict()["wte.weight"])
    with pytest.raises(DataError, match=r"GPT2ForSequenceClassification: it lacks score.weight"):
        read_pretrained(transformers.GPT2ForSequenceClassification(tiny_gpt2(num_labels=3)), tmp_path)
    assert read_pretrained(make_model(), tmp_path) is None


def test_tied_weights_are_written_once_and_views_apart(tmp_path: Path) -> None:
    one = torch.arange(6.0).reshape(2, 3)
    write_safetensors(
        tmp_path / "w.safetensors", {"a": one, "tied": one, "row": one[0], "turned": one.t()}, {"step": "3"}
    )
    found = read_file(tmp_path / "w.safetensors")
    assert_same(found, {"a": one, "row": one[0], "turned": one.t()})
    with safetensors.safe_open(tmp_path / "w.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "step": "3", "tied": "a"}
