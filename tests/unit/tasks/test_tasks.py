"""What all tasks promise, and each one's loss against the formula written out."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.errors import ConfigError, DataError, ValueRangeError
from drumline.parallel.strategy import Batch, Task
from drumline.tasks.classification import Classification
from drumline.tasks.contrastive import Contrastive
from drumline.tasks.language_modelling import LanguageModelling
from drumline.tasks.multi_label import MultiLabel
from drumline.tasks.regression import Regression
from drumline.tasks.sequence_to_sequence import SequenceToSequence
from drumline.tasks.token_classification import TokenClassification

ROWS, CLASSES, LENGTH = 6, 3, 4


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X = random(ROWS, 4)
TOKENS = random(ROWS, LENGTH, 4)
CLASS = torch.tensor([0, 1, 2, 2, 1, 0])
WORDS = torch.tensor([[1, 2, 0, -100], [0, -100, -100, -100], [2, 2, 2, 2]] * 2)
IDS = torch.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % 7


class Ids(nn.Module):
    """Scores of ids, with one extra input."""

    def __init__(self, num_scores: int) -> None:
        super().__init__()
        self.table = nn.Embedding(7, num_scores, dtype=torch.float64)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor | None = None) -> Tensor:
        scores: Tensor = self.table(input_ids)
        return scores if decoder_input_ids is None else scores + self.table(decoder_input_ids)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        return F.pad(labels.masked_fill(labels == -100, 0), (1, -1))


class Form(NamedTuple):
    task: Task
    model: nn.Module
    batch: Batch
    units: int
    expected: Callable[[Tensor], Tensor]
    """The loss of the model's own output."""
    unit: str


def similarities(anchors: Tensor) -> Tensor:
    """Cross-entropy of each anchor's cosines, over 0.5, with all positives; the model is applied to X + 1 too."""
    return F.cross_entropy(F.cosine_similarity(anchors[:, None], anchors[None] + 0.1, dim=-1) / 0.5, torch.arange(ROWS))


class Shifted(nn.Module):
    """Gives 0.1 more where it is called on the positives."""

    def forward(self, x: Tensor, more: Tensor) -> Tensor:
        return x + more


torch.manual_seed(0)
LINEAR, NUMBER, WIDE = (nn.Linear(4, size).double() for size in (CLASSES, 1, 2))
TARGETS = random(ROWS, 2, seed=2)
PRESENT = (random(ROWS, CLASSES, seed=1) > 0).double()
FORMS = {
    "classification": Form(
        Classification(CLASSES),
        LINEAR,
        (X, CLASS),
        ROWS,
        lambda out: F.cross_entropy(out, CLASS, reduction="sum"),
        "samples",
    ),
    "smoothed": Form(
        Classification(CLASSES, label_smoothing=0.3),
        LINEAR,
        {"input": X, "labels": CLASS.masked_fill(CLASS == 2, -100)},
        4,
        lambda out: F.cross_entropy(out[CLASS != 2], CLASS[CLASS != 2], label_smoothing=0.3) * 4,
        "samples",
    ),
    "multi_label": Form(
        MultiLabel(CLASSES),
        LINEAR,
        [X, PRESENT],
        ROWS,
        lambda out: F.binary_cross_entropy(out.sigmoid(), PRESENT) * ROWS,
        "samples",
    ),
    "squared": Form(
        Regression(num_targets=2),
        WIDE,
        (X, TARGETS),
        ROWS,
        lambda out: (out - TARGETS).square().mean() * ROWS,
        "samples",
    ),
    "absolute": Form(
        Regression("absolute"),
        NUMBER,
        (X, TARGETS[:, 0]),
        ROWS,
        lambda out: (out[:, 0] - TARGETS[:, 0]).abs().sum(),
        "samples",
    ),
    "huber": Form(
        Regression("huber"),
        nn.Sequential(NUMBER, nn.Flatten(0)),
        (X, TARGETS[:, :1]),
        ROWS,
        lambda out: F.huber_loss(out, TARGETS[:, 0], reduction="sum"),
        "samples",
    ),
    "token_classification": Form(
        TokenClassification(CLASSES),
        LINEAR,
        (TOKENS, WORDS),
        16,
        lambda out: F.cross_entropy(out.flatten(0, 1), WORDS.flatten()) * 16,
        "tokens",
    ),
    "language_modelling": Form(
        LanguageModelling(7),
        Ids(7),
        {"input_ids": IDS, "labels": WORDS},
        16,
        lambda out: F.cross_entropy(out.flatten(0, 1), WORDS.flatten()) * 16,
        "tokens",
    ),
    "sequence_to_sequence": Form(
        SequenceToSequence(7),
        Ids(7),
        {"input_ids": IDS, "labels": WORDS},
        16,
        lambda out: F.cross_entropy(out.flatten(0, 1), WORDS.flatten()) * 16,
        "tokens",
    ),
    "contrastive": Form(
        Contrastive(0.5),
        Shifted(),
        {
            "anchor": {"x": X, "more": torch.zeros(ROWS, 1).double()},
            "positive": {"x": X, "more": torch.full((ROWS, 1), 0.1, dtype=torch.float64)},
        },
        ROWS,
        lambda out: similarities(X) * ROWS,
        "samples",
    ),
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def own_output(form: Form) -> Tensor:
    """What the model says, called by hand."""
    if isinstance(form.model, Shifted):
        return X
    if isinstance(form.task, SequenceToSequence):
        shifted = torch.cat([torch.zeros(ROWS, 1).long(), WORDS.clamp(min=0)[:, :-1]], 1)
        return form.model(IDS, shifted)  # type: ignore[no-any-return]
    if isinstance(form.model, Ids):
        return form.model(IDS)  # type: ignore[no-any-return]
    return form.model(next(iter(form.batch.values())) if isinstance(form.batch, dict) else form.batch[0])  # type: ignore[no-any-return]


@forms
def test_the_loss_is_a_sum_over_what_is_counted(form: Form) -> None:
    form.task.check(form.batch)
    assert form.task.count(form.batch) == form.units
    total = form.task.loss(form.task.forward(form.model, form.batch), form.batch).total
    assert total.dtype == torch.float64
    assert total.item() == pytest.approx(form.expected(own_output(form)).item(), abs=1e-12)
    assert getattr(form.task, "unit", None) == form.unit
    assert getattr(form.task, "needs_count", None) is False


@forms
def test_a_micro_batch_is_worth_its_rows(form: Form) -> None:
    """Sums of parts are the sum of the whole, except where rows are compared with one another."""
    if isinstance(form.task, Contrastive):
        with pytest.raises(AssertionError):
            self_consistent(form)
    else:
        self_consistent(form)


def self_consistent(form: Form) -> None:
    parts = [rows(form.batch, slice(0, 1)), rows(form.batch, slice(1, None))]
    whole, *totals = (form.task.loss(form.task.forward(form.model, b), b).total for b in (form.batch, *parts))
    assert sum(total.item() for total in totals) == pytest.approx(whole.item(), abs=1e-12)
    assert sum(form.task.count(part) for part in parts) == form.units


def rows(batch: Any, chosen: slice) -> Any:
    if isinstance(batch, dict):
        return {name: rows(value, chosen) for name, value in batch.items()}
    return batch[chosen] if isinstance(batch, Tensor) else type(batch)(rows(item, chosen) for item in batch)


@forms
def test_rows_without_labels_pass_the_check_and_are_not_learned_from(form: Form) -> None:
    bare: Any = (
        {k: v for k, v in form.batch.items() if k not in ("labels", "positive")}
        if isinstance(form.batch, dict)
        else form.batch[:1]
    )
    form.task.check(bare)
    with pytest.raises(DataError):
        form.task.count(bare)


@forms
def test_loader_processes_can_have_the_task(form: Form) -> None:
    copy = pickle.loads(pickle.dumps(form.task))
    assert copy.count(form.batch) == form.units


@forms
def test_a_task_compiles_into_one_graph_with_its_model(form: Form) -> None:
    def total(batch: Batch) -> Tensor:
        return form.task.loss(form.task.forward(form.model, batch), batch).total

    torch._dynamo.reset()
    compiled: Callable[[Batch], Tensor] = torch.compile(total, backend="eager", fullgraph=True)
    assert compiled(form.batch).item() == total(form.batch).item()


@forms
def test_metrics_of_the_task_are_measured(form: Form) -> None:
    task: Any = form.task
    if not hasattr(task, "metrics"):
        assert set(task.derived({"loss": math.log(7.0)})) == {"perplexity"}
        with torch.no_grad():
            loss = task.loss(task.forward(form.model, form.batch), form.batch)
        right, counted = loss.metrics["accuracy"]
        assert 0 <= int(right) <= int(counted) == form.units
        return
    metrics = task.metrics()
    with torch.no_grad():
        outputs = task.forward(form.model, form.batch)
        task.measure(metrics, outputs, form.batch)
        predicted = task.predict(outputs, form.batch)
    assert all(math.isfinite(float(metric.compute())) for metric in metrics.values())
    assert all(len(p) == ROWS for p in (predicted.values() if isinstance(predicted, dict) else [predicted]))


def test_perplexity_is_the_exponential_of_the_loss() -> None:
    task = LanguageModelling(3)
    assert task.derived({"loss": math.log(5)}) == {"perplexity": pytest.approx(5)}
    assert task.derived({"loss": 1e4}) == {"perplexity": math.inf}
    assert task.derived({"count": 0}) == {}


@pytest.mark.parametrize(
    ("task", "batch", "problem"),
    [
        (Classification(3), (X, torch.tensor([0, 3])), r"labels\[1\] is 3"),
        (Classification(3), (X, torch.tensor([0.0])), "whole numbers"),
        (TokenClassification(3), (X, torch.tensor([[0, -1]])), r"labels\[0, 1\] is -1"),
        (MultiLabel(2), (X, torch.tensor([[1, 0]])), "floats"),
        (MultiLabel(2), (X, torch.tensor([[0.0, 1.0, 1.0]])), r"shape \[1, 3\]"),
        (MultiLabel(2), (X, torch.tensor([[0.0, 1.5]])), r"labels\[0, 1\] is 1.5; allowed are 0 to 1"),
        (MultiLabel(2), (X, torch.tensor([[math.nan, 1.0]])), r"labels\[0, 0\] is nan"),
        (Regression(), (X, torch.tensor([1.0, math.inf, math.nan])), r"labels\[1\] is inf \(and 1 more\)"),
        (Regression(num_targets=2), (X, torch.ones(3)), r"\[rows, 2\] is needed"),
        (SequenceToSequence(5), {"input_ids": torch.tensor([[5]])}, r"input_ids\[0, 0\] is 5"),
        (SequenceToSequence(5), {"input_ids": IDS % 5, "labels": torch.tensor([[9]])}, r"labels\[0, 0\] is 9"),
    ],
)
def test_labels_that_cannot_be_learned_are_named(task: Task, batch: Batch, problem: str) -> None:
    with pytest.raises(ValueRangeError, match=problem):
        task.check(batch)


@pytest.mark.parametrize(
    ("form", "model"),
    [("classification", nn.Linear(4, 5)), ("multi_label", nn.Linear(4, 1)), ("token_classification", nn.Linear(4, 2))],
)
def test_a_model_of_another_width_is_refused(form: str, model: nn.Module) -> None:
    task, batch = FORMS[form].task, FORMS[form].batch
    with pytest.raises(ConfigError, match="gave scores of shape"):
        task.loss(task.forward(model.double(), batch), batch)


def test_regression_never_compares_rows_with_one_another() -> None:
    with pytest.raises(ConfigError, match=r"shape \[6, 3\], and 1 a row"):
        Regression().forward(LINEAR, (X, TARGETS[:, 0]))
    with pytest.raises(ConfigError, match="no error called 'cubic'"):
        Regression("cubic")  # type: ignore[arg-type]


def test_a_threshold_counts_itself() -> None:
    task = MultiLabel(2, threshold=0.5)
    predicted = task.predict(torch.tensor([[0.0, -0.01]]), None)
    assert predicted["labels"].tolist() == [[True, False]]
    metrics = task.metrics()
    task.measure(metrics, torch.tensor([[0.0, -0.01], [-1, 1]]), (None, torch.tensor([[1.0, 0.0], [0.0, 1.0]])))
    assert float(metrics["f1"].compute()) == 1.0


def test_padding_is_predicted_as_ignored() -> None:
    task = TokenClassification(3)
    batch = {"attention_mask": torch.tensor([[1, 1, 0]])}
    assert task.predict(torch.eye(3)[None], batch).tolist() == [[0, 1, -100]]


class Unshifting(nn.Module):
    """Takes labels, and keeps them, as models that shift them inside do."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        self.labels = labels
        return F.one_hot(input_ids, 7).double()


def test_a_model_that_shifts_by_itself_is_given_the_labels() -> None:
    model, batch = Unshifting(), {"input_ids": IDS, "labels": WORDS}
    SequenceToSequence(7).forward(model, batch)
    assert model.labels is WORDS


def test_decoder_inputs_of_the_batch_are_kept() -> None:
    batch = {"input_ids": IDS, "decoder_input_ids": IDS.flip(0)}
    model = Ids(7)
    assert torch.equal(SequenceToSequence(7).forward(model, batch), model(IDS, IDS.flip(0)))


def test_pairs_must_be_pairs() -> None:
    task = Contrastive()
    with pytest.raises(DataError, match="6 anchors and 5 positives"):
        task.count({"anchor": X, "positive": X[:5]})
    with pytest.raises(DataError, match="is a Tensor"):
        task.count(X)
    with pytest.raises(ConfigError, match="one embedding a row"):
        task.forward(nn.Linear(4, 2).double(), {"anchor": TOKENS})


def test_similarities_are_compared_in_full_precision() -> None:
    vectors = {
        name: F.normalize(random(ROWS, 4, seed=seed).float(), dim=-1)
        for seed, name in enumerate(("anchor", "positive"))
    }
    expected = Contrastive().loss(vectors, None).total
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(Contrastive().loss(vectors, None).total, expected)
