"""Where templates come from, and what one may do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline.data.jinja_templates import CLOSES, OPENS, PACKED, Found, Renderer, find_template, own_template
from drumline.errors import ConfigError, DataError

CHAT = [{"role": "user", "content": "a \u00fc"}]


def rendered(source: str, **names: str) -> str:
    return Renderer(Found(source, "there"), names).render(CHAT)


def test_the_packed_ones_a_file_and_the_tokenizers_own(tmp_path: Path) -> None:
    assert PACKED == ("chatml", "gemma", "llama2", "llama3", "phi3", "zephyr")
    assert find_template("gemma", None).where == "the packed template gemma"
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[0].content }}")
    assert find_template(str(file), None) == Found("{{ messages[0].content }}", str(file))
    assert own_template(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": [{"name": "default", "template": "d"}, {"name": "rag"}]}))
    assert find_template(None, tmp_path) == Found("d", str(config))
    config.write_text(json.dumps({"chat_template": "c"}))
    assert find_template(None, tmp_path) == Found("c", str(config))
    (tmp_path / "chat_template.jinja").write_text("j")
    assert find_template(None, tmp_path).source == "j"


def test_a_template_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'chatlm' is neither.*\n.*chatml, gemma, llama2, llama3, phi3, zephyr"):
        find_template("chatlm", None)
    with pytest.raises(ConfigError, match=r"the tokenizer in .* has no chat template.*\n.*chatml"):
        find_template(None, tmp_path)
    with pytest.raises(ConfigError, match="the tokenizer has no chat template"):
        find_template(None, None)
    (tmp_path / "x.jinja").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as text"):
        find_template(str(tmp_path / "x.jinja"), None)


def test_what_templates_use() -> None:
    assert rendered("{{ bos_token }}{{ messages[0].content }}{{ no_token }}", bos_token="<s>") == "<s>a \u00fc"
    assert rendered("{{ messages[0] | tojson }}") == '{"role": "user", "content": "a \u00fc"}'
    assert rendered("{{ messages | tojson(indent=1) }}").startswith('[\n {\n  "role"')
    assert rendered("{% generation %}x{% endgeneration %}y") == f"{OPENS}x{CLOSES}y"
    assert rendered("{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "1"
    assert rendered("{{ strftime_now('%Y') }}") == rendered("{{ strftime_now('%Y') }}")
    assert rendered("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses a row's messages: roles must alternate"),
        ("{{ messages[0].content + 1 }}", "refuses a row's messages: TypeError"),
        ("{{ messages[7].content.x }}", "refuses a row's messages: .*undefined|has no"),
        ("{{ messages.append(1) }}", "refuses a row's messages: .*append"),
        ("{{ raise_exception('no: ' + messages[0].content) }}", "refuses a row's messages: TemplateError"),
        ("{{ {}[messages[0].content].x }}", "refuses a row's messages: UndefinedError"),
        ("{{ 1 // 0 }}", "refuses a row's messages: ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "refuses a row's messages"),
    ],
)
def test_what_a_template_refuses_is_told_without_the_messages_words(source: str, what: str) -> None:
    with pytest.raises(DataError, match=what) as raised:
        Renderer(Found(source, "there"), {}).render([{"role": "user", "content": "secret"}])
    assert "secret" not in str(raised.value)


def test_what_is_no_template() -> None:
    with pytest.raises(ConfigError, match=r"in there is no Jinja template: line 2"):
        Renderer(Found("a\n{% for %}", "there"), {})
