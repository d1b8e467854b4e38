from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, unpack_sequence
from transformers import BatchEncoding
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from drumline.errors import DataError
from drumline.parallel.split import Part, gather, rebuilt, split, to_device

CPU, META = torch.device("cpu"), torch.device("meta")


class Pair(NamedTuple):
    left: Any
    right: Any


Loose = namedtuple("Loose", ["x"])


@dataclass(frozen=True)
class Record:
    x: Tensor
    name: str
    made: list[int] = field(default_factory=list, init=False)


def rows(count: int, *shape: int) -> Tensor:
    """Row i is all i."""
    column = torch.arange(count, dtype=torch.float64).reshape(count, *[1] * len(shape))
    return column.expand(count, *shape).contiguous()


def same(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("num_parts", range(1, 9))
def test_sizes_differ_by_at_most_one_and_none_is_empty(num_parts: int) -> None:
    for num_rows in range(41):
        x, ids = rows(num_rows, 2), torch.arange(num_rows)
        parts = split((x,), {"ids": ids, "deep": {"of": [ids]}}, num_parts)
        sizes = [part.rows for part in parts]
        assert len(parts) == max(1, min(num_rows, num_parts))
        assert sum(sizes) == num_rows and max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)
        assert min(sizes) >= 1 or num_rows == 0
        assert [len(part.args[0]) for part in parts] == sizes
        same(torch.cat([part.args[0] for part in parts]), x)
        same(torch.cat([part.kwargs["ids"] for part in parts]), ids)
        same(torch.cat([part.kwargs["deep"]["of"][0] for part in parts]), ids)


def test_nine_rows_on_four_and_on_eight() -> None:
    assert [part.rows for part in split((rows(9),), {}, 4)] == [3, 2, 2, 2]
    assert [part.rows for part in split((rows(9),), {}, 8)] == [2, 1, 1, 1, 1, 1, 1, 1]
    assert len(torch.empty(9).chunk(4)) == 3  # why this is not done by chunk


def test_keyword_arguments_alone() -> None:
    parts = split((), {"x": rows(3), "scale": 2.0}, 2)
    assert [part.args for part in parts] == [(), ()]
    same([part.kwargs for part in parts], [{"x": rows(3)[:2], "scale": 2.0}, {"x": rows(3)[2:], "scale": 2.0}])


def test_at_least_so_many_rows_a_part() -> None:
    assert [part.rows for part in split((rows(9),), {}, 8, least=2)] == [3, 2, 2, 2]
    assert [part.rows for part in split((rows(3),), {}, 2, least=2)] == [3]


def test_without_rows_there_is_one_part() -> None:
    flag = torch.tensor(3)
    assert split((), {}, 4) == [Part((), {}, 0)]
    assert split((flag, "text"), {"k": None}, 4) == [Part((flag, "text"), {"k": None}, 0)]


def test_what_is_no_batch_goes_to_all() -> None:
    flag, positions, marker = torch.tensor(3), torch.arange(5)[None], object()
    parts = split((positions, rows(4)), {"flag": flag, "text": "ab", "none": None, "marker": marker}, 4)
    assert [part.rows for part in parts] == [1, 1, 1, 1]
    for part in parts:
        assert part.args[0] is positions and part.kwargs["flag"] is flag and part.kwargs["marker"] is marker
        assert (part.kwargs["text"], part.kwargs["none"]) == ("ab", None)


def test_rows_that_are_several_to_a_row_of_the_batch_follow_it() -> None:
    clips, frames = rows(3), torch.arange(12)
    parts = split((clips, frames), {}, 2)
    assert [part.args[1].tolist() for part in parts] == [list(range(8)), [8, 9, 10, 11]]


def test_a_tensor_of_another_size_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"kwargs\['deep'\]\[1\]\.x has 5 rows along dimension 0, and args\[0\] 4"):
        split((rows(4),), {"deep": [1, Record(rows(5), "a")]}, 2)
    with pytest.raises(DataError, match=r"args\[1\] has 0 rows"):
        split((rows(4), rows(0)), {}, 2)
    assert len(split((rows(4), rows(5)), {}, 1)) == 1


def test_another_dimension() -> None:
    x, mask = rows(5).expand(2, 5), rows(5)
    parts = split((x, mask), {}, 2, dim=1)
    same([part.args[0] for part in parts], [x[:, :3], x[:, 3:]])
    assert all(part.args[1] is mask for part in parts)


def test_structures_keep_their_types() -> None:
    x = rows(3)
    encoding = BatchEncoding({"input_ids": x})
    numbered: defaultdict[str, Any] = defaultdict(list, x=x)
    given = ([x], Pair(x, "r"), Loose(x), Record(x, "a"), OrderedDict(x=x), UserDict(x=x), encoding, numbered)
    first, second = split(given, {"fixed": MappingProxyType({"x": x})}, 2)
    for part, expected in ((first, x[:2]), (second, x[2:])):
        assert [type(each) for each in part.args] == [type(each) for each in given]
        listed, pair, loose, record, *mappings = part.args
        for found in (listed[0], pair.left, loose.x, record.x):
            same(found, expected)
        assert (pair.right, record.name, record.made) == ("r", "a", [])
        for mapping in mappings[:2]:
            same(mapping["x"], expected)
        same(mappings[2]["input_ids"], expected)
        assert mappings[3].default_factory is list
        assert type(part.kwargs["fixed"]) is dict
        same(part.kwargs["fixed"]["x"], expected)
    same(encoding["input_ids"], x)
    same(given[3].x, x)
    first.args[0].append(1)
    assert len(second.args[0]) == len(given[0]) == 1


def test_gradients_go_through_split_and_gather() -> None:
    x = rows(5, 2).requires_grad_()
    parts = split((x,), {}, 3)
    joined = gather(
        [{"y": part.args[0] * (number + 1), "sum": part.args[0].sum()} for number, part in enumerate(parts)], CPU
    )
    (joined["y"].sum() + (joined["sum"] * torch.tensor([1.0, 10.0, 100.0])).sum()).backward()
    same(x.grad, torch.tensor([2.0, 2.0, 12.0, 12.0, 103.0], dtype=torch.float64)[:, None].expand(5, 2).contiguous())


@pytest.mark.parametrize("is_sorted", [True, False])
def test_packed_sequences_are_cut_by_sequence_and_put_together(is_sorted: bool) -> None:
    lengths = [4, 3, 3, 1, 1] if is_sorted else [1, 3, 4, 1, 3]
    sequences = [torch.full((length, 2), float(i)) for i, length in enumerate(lengths)]
    packed = pack_sequence(sequences, enforce_sorted=is_sorted)
    parts = split((packed,), {"label": torch.arange(5)}, 2)
    assert [part.rows for part in parts] == [3, 2]
    assert all(isinstance(part.args[0], PackedSequence) for part in parts)
    same([each for part in parts for each in unpack_sequence(part.args[0])], sequences)
    assert parts[1].kwargs["label"].tolist() == [3, 4]
    joined = gather([part.args[0] for part in parts], CPU)
    same(unpack_sequence(joined), sequences)


def test_packed_sequences_padded_before() -> None:
    packed = pack_padded_sequence(rows(2, 3), torch.tensor([3, 2]), batch_first=True)
    same(unpack_sequence(split((packed,), {}, 2)[1].args[0]), [rows(2, 3)[1, :2]])


def test_tensors_are_joined_and_scalars_become_a_vector() -> None:
    joined = gather([(torch.tensor(1.0), rows(2)), (torch.tensor(2.0), rows(1))], CPU)
    same(joined, (torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)))
    same(gather([rows(2, 3).T, rows(1, 3).T], CPU, dim=1), torch.cat([rows(2, 3), rows(1, 3)]).T)
    assert gather([rows(2), rows(1)], META).device == META


def test_outputs_of_any_type() -> None:
    model_outputs = [
        SequenceClassifierOutput(loss=torch.tensor(float(i)), logits=rows(2, 3), hidden_states=(rows(2), rows(2)))
        for i in range(2)
    ]
    joined = gather(model_outputs, CPU)
    assert type(joined) is SequenceClassifierOutput
    assert list(joined) == ["loss", "logits", "hidden_states"] and joined.attentions is None
    same(joined.loss, torch.tensor([0.0, 1.0]))
    assert joined.logits.shape == joined["logits"].shape == (4, 3)
    assert [len(each) for each in joined.hidden_states] == [4, 4]
    assert model_outputs[0].logits.shape == (2, 3)
    record = gather([Record(rows(2), "a"), Record(rows(1), "a")], CPU)
    assert type(record) is Record and record.x.shape == (3,) and record.name == "a"
    assert gather([Pair(rows(1), 1), Pair(rows(1), 2)], CPU).right == [1, 2]
    assert type(gather([UserDict(x=rows(1))] * 2, CPU)) is UserDict
    inner = gather([BaseModelOutput(last_hidden_state=rows(1))] * 2, CPU)
    assert type(inner) is BaseModelOutput and len(inner.last_hidden_state) == 2


def test_what_is_no_tensor() -> None:
    assert gather([None, None], CPU) is None
    assert gather(["a", "a"], CPU) == "a"
    assert gather([3, 3, 3], CPU) == 3
    assert gather([0.5, 0.25], CPU) == [0.5, 0.25]
    assert gather([1, 1.0], CPU) == [1, 1.0]
    assert gather([["a", "b"], ["a"]], CPU) == ["a", "b", "a"]
    assert gather([("h", 2), ("h", 2)], CPU) == ("h", 2)
    assert gather([torch.Size([2])] * 2, CPU) == torch.Size([2])
    own, other = object(), object()
    assert gather([own, own], CPU) is own
    assert gather([own, other], CPU) == [own, other]


@pytest.mark.parametrize(
    ("outputs", "named"),
    [
        ([{"x": rows(1)}, {"y": rows(1)}], r"output is \['x'\], \['y'\]"),
        ([{"x": rows(1, 2)}, {"x": rows(1, 3)}], r"output\['x'\] is \(1, 2\), \(1, 3\)"),
        ([rows(1), torch.tensor(1.0)], r"output is \(1,\), \(\)"),
        ([rows(1), None], r"output is \(1,\), NoneType"),
        ([(rows(1),), [rows(1)]], "list, tuple"),
        ([[rows(1)], [rows(1), rows(1)]], "output is 1, 2"),
        ([Pair(rows(1), {1: rows(1)}), Pair(rows(1), {1: rows(2, 2)})], r"output\[1\]\[1\]"),
    ],
)
def test_outputs_that_do_not_fit_are_refused_by_name(outputs: list[Any], named: str) -> None:
    with pytest.raises(DataError, match=named):
        gather(outputs, CPU)


def test_a_structure_is_moved_and_stays_what_it_is() -> None:
    encoding = BatchEncoding({"input_ids": rows(2)})
    packed = pack_sequence([rows(2)])
    moved = to_device((encoding, Record(rows(1), "a"), packed, 3), META)
    assert type(moved[0]) is BatchEncoding and moved[0]["input_ids"].device == META
    assert encoding["input_ids"].device == CPU
    assert (moved[1].x.device, moved[2].data.device, moved[3]) == (META, META, 3)
    assert rebuilt(torch.Size([2]), lambda leaf: leaf) == torch.Size([2])
