from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from drumline.data.files import read_pieces
from drumline.data.tokenizers import ByteTokenizer, HuggingFaceTokenizer, has_tokenizer, load_tokenizer
from drumline.errors import DataError, MissingExtra

SENTENCES = ["Call me Ishmael.", "The whale, the white whale!", "Some years ago - never mind how long precisely"]
TEXT = "The whale's 42 naïve cafés:\n\n\tIshmael 日本 🙂.\nThe end"


def train(special: list[str], alphabet: bool = True) -> Any:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, show_progress=False, special_tokens=special, initial_alphabet=letters
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def trained() -> Any:
    return train(["<|endoftext|>"])


@pytest.fixture
def folder(tmp_path: Path, trained: Any) -> Path:
    trained.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture
def pair_folder(tmp_path: Path, trained: Any) -> Path:
    folder = tmp_path / "pair"
    folder.mkdir()
    trained.model.save(str(folder))
    return folder


def test_bytes() -> None:
    tokenizer = load_tokenizer("byte")
    assert isinstance(tokenizer, ByteTokenizer)
    ids = tokenizer.encode("Aé\n")
    assert ids.dtype == np.int64
    assert ids.tolist() == [65, 0xC3, 0xA9, 10]
    assert (tokenizer.vocab_size, tokenizer.end_of_document) == (257, 256)
    assert [part.tolist() for part in tokenizer.encode_batch(["A", "", "B"])] == [[65], [], [66]]


def test_bytes_decode_leaves_out_what_is_no_text() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.decode([72, 256, 105, 319]) == "Hi"
    assert tokenizer.decode([0xC3]) == "�"


def test_tokenizer_json(folder: Path, trained: Any) -> None:
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.vocab_size == 300 == trained.get_vocab_size()
    assert tokenizer.end_of_document == trained.token_to_id("<|endoftext|>")
    ids = tokenizer.encode(TEXT)
    assert ids.dtype == np.int64
    assert 0 < len(ids) < len(TEXT.encode())
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.decode([*ids[:3], tokenizer.end_of_document, *ids[3:], 5000]) == TEXT


def test_pair_gives_the_ids_of_tokenizer_json(folder: Path, pair_folder: Path) -> None:
    whole, pair = load_tokenizer(str(folder)), load_tokenizer(str(pair_folder))
    assert sorted(file.name for file in pair_folder.iterdir()) == ["merges.txt", "vocab.json"]
    assert pair.vocab_size == 300
    assert pair.end_of_document == whole.end_of_document
    assert np.array_equal(pair.encode(TEXT), whole.encode(TEXT))
    assert pair.encode("a<|endoftext|>b").tolist()[1] == pair.end_of_document


def test_gpt2_names_give_the_same_tokenizer(pair_folder: Path) -> None:
    first = load_tokenizer(str(pair_folder))
    (pair_folder / "vocab.json").rename(pair_folder / "encoder.json")
    (pair_folder / "merges.txt").rename(pair_folder / "vocab.bpe")
    second = load_tokenizer(str(pair_folder))
    assert second.fingerprint == first.fingerprint
    assert np.array_equal(second.encode(TEXT), first.encode(TEXT))


def test_batch_equals_one_by_one(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    texts = [TEXT, "", *SENTENCES]
    for one, many in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert np.array_equal(tokenizer.encode(one), many)


@pytest.mark.parametrize("size", [20, 21, 30, 50])
def test_cutting_a_text_does_not_change_its_ids(folder: Path, size: int) -> None:
    tokenizer = load_tokenizer(str(folder))
    text = "The whale, white\n\n  whale 42\nnever  mind\n\nprecisely. Ishmael " * 12
    (folder / "a.txt").write_text(text)
    pieces = list(read_pieces(folder / "a.txt", size))
    assert len(pieces) > 10
    assert np.array_equal(np.concatenate(tokenizer.encode_batch(pieces)), tokenizer.encode(text))


def test_truncation_and_padding_are_switched_off(tmp_path: Path) -> None:
    trained = train(["<|endoftext|>"])
    trained.enable_truncation(4)
    trained.enable_padding(length=6)
    trained.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert [len(ids) for ids in tokenizer.encode_batch(["", "a"])] == [0, 1]


@pytest.mark.parametrize("eos", ["</s>", {"content": "</s>", "lstrip": False}])
def test_end_of_document_from_the_tokenizer_config(tmp_path: Path, eos: object) -> None:
    trained = train(["<unk>", "</s>"])
    trained.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    assert load_tokenizer(str(tmp_path)).end_of_document == 1


@pytest.mark.parametrize("settings", ["{}", "not json", '{"eos_token": "<eos>"}', "[]", None])
def test_no_end_of_document_token(tmp_path: Path, settings: str | None) -> None:
    train(["</s>"]).save(str(tmp_path / "tokenizer.json"))
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(settings)
    tokenizer = load_tokenizer(str(tmp_path))  # enough for rows that are no stream of documents
    with pytest.raises(DataError, match=r"no end-of-document token.*\n  fix: .*tokenizer_config\.json"):
        _ = tokenizer.end_of_document


def test_fingerprint_follows_content(folder: Path, pair_folder: Path, tmp_path: Path) -> None:
    first = load_tokenizer(str(folder))
    assert first.fingerprint == HuggingFaceTokenizer(folder).fingerprint
    assert len({first.fingerprint, load_tokenizer(str(pair_folder)).fingerprint, ByteTokenizer().fingerprint}) == 3
    train(["<|endoftext|>", "<extra>"]).save(str(folder / "tokenizer.json"))
    assert load_tokenizer(str(folder)).fingerprint != first.fingerprint


def test_survives_pickling(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.fingerprint == tokenizer.fingerprint
    assert np.array_equal(copy.encode(TEXT), tokenizer.encode(TEXT))


def test_vocabulary_of_one_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"<|endoftext|>": 0}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(DataError, match="a vocabulary of only 1 tokens"):
        load_tokenizer(str(tmp_path))


def test_pair_that_drops_characters_is_refused(tmp_path: Path) -> None:
    vocabulary = {f"tok{i}": i for i in range(300)} | {"<|endoftext|>": 300, "T": 301, "h": 302}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(DataError, match=r"does not give text back: .The 2 naïve .* becomes 'Th'"):
        load_tokenizer(str(tmp_path))


def test_tokenizer_json_that_gives_other_text_back_is_refused(tmp_path: Path) -> None:
    trained = train(["<|endoftext|>"])
    trained.normalizer = tokenizers.normalizers.Replace("e", "")
    trained.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="does not give text back"):
        load_tokenizer(str(tmp_path))


def test_lower_case_word_pieces_are_accepted(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=100, show_progress=False, special_tokens=["[UNK]", "[SEP]"]
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "[SEP]"}')
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.decode(loaded.encode("The Whale")) == "the whale"


@pytest.fixture
def word_pieces(tmp_path: Path) -> Path:
    """A folder as BERT's were before there was a tokenizer.json."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "white", "whale", "##s", "The"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    return tmp_path


def test_an_older_folder_with_vocab_txt(word_pieces: Path) -> None:
    loaded = load_tokenizer(str(word_pieces))
    assert has_tokenizer(word_pieces) and loaded.vocab_size == 10 and loaded.pad_id == 0
    assert loaded.encode("The white whales").tolist() == [5, 6, 7, 8]
    row = loaded.encode_row("white", "The whale", 16)
    assert row.ids.tolist() == [2, 6, 3, 5, 7, 3] and row.type_ids.tolist() == [0, 0, 0, 1, 1, 1]
    assert pickle.loads(pickle.dumps(loaded)).encode("whale").tolist() == [7]
    (word_pieces / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    cased = load_tokenizer(str(word_pieces))
    assert cased.encode("The white whales").tolist() == [9, 6, 7, 8]
    assert cased.fingerprint != loaded.fingerprint


def test_an_older_folder_that_does_not_say_what_it_is(word_pieces: Path) -> None:
    (word_pieces / "config.json").write_text("{}")
    with pytest.raises(DataError, match=r"cannot load vocab\.txt in "):
        load_tokenizer(str(word_pieces))


def test_a_sentencepiece_model_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    (tmp_path / "spiece.model").write_bytes(b"")
    with pytest.raises(DataError, match=r"spiece\.model in .* package sentencepiece.*\n.*pip install sentencepiece"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("content", ["", "{}", "not json"])
def test_damaged_tokenizer_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=r"cannot load tokenizer\.json in "):
        load_tokenizer(str(tmp_path))


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokeniser.json").write_text("{}")
    with pytest.raises(DataError, match=r"holds no tokenizer: neither tokenizer\.json nor .*\n.*has tokeniser\.json"):
        HuggingFaceTokenizer(tmp_path)


def test_name_that_is_neither_byte_nor_a_folder(tmp_path: Path) -> None:
    (tmp_path / "gpt2").mkdir()
    with pytest.raises(DataError, match=r"neither 'byte' nor a folder\n.*has gpt2\)"):
        load_tokenizer(str(tmp_path / "gpt-2"))


def test_package_not_installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'drumline\[hf\]'"):
        load_tokenizer(str(folder))


@pytest.fixture
def template_folder(tmp_path: Path) -> Path:
    """A word-piece tokenizer whose template is [CLS] text [SEP] pair [SEP], as BERT's, without an end token."""
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "white": 4, "whale": 5, "sea": 6, "##s": 7}, "[UNK]"
        )
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "[PAD]"}')
    return tmp_path


def test_a_models_row_has_the_special_ids_of_its_template_and_is_cut(template_folder: Path) -> None:
    tokenizer = load_tokenizer(str(template_folder))
    assert tokenizer.encode("white whale").tolist() == [4, 5]
    row = tokenizer.encode_row("white whale", None, 8)
    assert (row.ids.tolist(), row.type_ids.tolist()) == ([1, 4, 5, 2], [0, 0, 0, 0])
    assert tokenizer.encode_row("white whale white whale", None, 4).ids.tolist() == [1, 4, 5, 2]
    pair = tokenizer.encode_row("white whale", "sea", 8)
    assert (pair.ids.tolist(), pair.type_ids.tolist()) == ([1, 4, 5, 2, 6, 2], [0, 0, 0, 0, 1, 1])
    assert tokenizer.encode_row("", None, 8).ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("first", "second", "longest", "kept"),
    [(5, 1, 7, (3, 1)), (1, 5, 7, (1, 3)), (5, 5, 7, (2, 2)), (5, 5, 8, (3, 2)), (5, 5, 3, (0, 0)), (2, 2, 99, (2, 2))],
)
def test_of_two_texts_the_longer_one_is_cut_first(
    template_folder: Path, first: int, second: int, longest: int, kept: tuple[int, int]
) -> None:
    row = load_tokenizer(str(template_folder)).encode_row(
        " ".join(["white"] * first), " ".join(["sea"] * second), longest
    )
    assert ((row.ids == 4).sum(), (row.ids == 6).sum()) == kept
    whole = ByteTokenizer().encode_row("w" * first, "s" * second, longest - 2)
    assert ((whole.ids == ord("w")).sum(), (whole.ids == ord("s")).sum()) == kept


def test_ids_know_their_words(template_folder: Path) -> None:
    ids, words = load_tokenizer(str(template_folder)).encode_words(["white", "sea-whale", "", "whale"], 99)
    assert ids.tolist() == [1, 4, 6, 3, 5, 5, 2]
    assert words == [None, 0, 1, 1, 1, 3, None]
    _, cut = load_tokenizer(str(template_folder)).encode_words(["white", "whale", "sea"], 4)
    assert cut == [None, 0, 1, None]


def test_byte_level_ids_know_their_words_too(pair_folder: Path) -> None:
    tokenizer = load_tokenizer(str(pair_folder))
    words = ["The", "Ishmael-whale", "日本", "it's"]
    ids, numbers = tokenizer.encode_words(words, 99)
    for number, word in enumerate(words):
        own = [token for token, of in zip(ids.tolist(), numbers, strict=True) if of == number]
        assert tokenizer.decode(own).strip() == word
    assert ids.tolist() == tokenizer.encode(" ".join(words)).tolist()


def test_the_padding_id(template_folder: Path, pair_folder: Path) -> None:
    assert load_tokenizer(str(template_folder)).pad_id == 0
    pair = load_tokenizer(str(pair_folder))
    assert pair.pad_id == pair.end_of_document
    assert ByteTokenizer().pad_id == 256
