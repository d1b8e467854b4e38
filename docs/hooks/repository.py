"""For mkdocs: README.md is the home page, and what pages link to outside docs/ stands in the site too.

What docs/ does not hold comes under repository/ in the site, at its path in the repository: Markdown as pages, folders
by their README, everything else as a file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

HOME, DOCS, REST = "index.md", "docs/", "repository/"
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the home page, and all that can be reached from the pages by links, and from what they lead to."""
    root = Path(config.config_file_path).parent
    waiting = ["README.md", *(DOCS + file.src_uri for file in files.documentation_pages())]
    seen = set(waiting)
    files.append(File.generated(config, HOME, abs_src_path=str(root / "README.md")))
    while waiting:
        page = waiting.pop()
        text = (root / page).read_text(encoding="utf-8")
        for link, _ in LINK.findall(text):
            target = target_of(root, page, link)
            if target is None or target in seen or target.startswith(DOCS):
                continue
            seen.add(target)
            files.append(File.generated(config, site_path(target), abs_src_path=str(root / target)))
            if target.endswith(".md"):
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links lead to where their targets stand in the site; one that leads nowhere is left, and mkdocs tells."""
    root = Path(config.config_file_path).parent
    here = repository_path(page.file.src_uri)

    def replaced(found: re.Match[str]) -> str:
        target = target_of(root, here, found[1])
        if target is None:
            return found[0]
        path = posixpath.relpath(site_path(target), posixpath.dirname(page.file.src_uri) or ".")
        return f"]({path}{found[2] or ''})"

    return LINK.sub(replaced, markdown)


def target_of(root: Path, page: str, link: str) -> str | None:
    """The path in the repository of the file that a link on a page there leads to; None where there is none."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if path.startswith(".."):
        return None
    if (root / path).is_dir():
        path += "/README.md"
    return path if (root / path).is_file() else None


def site_path(path: str) -> str:
    """Where a file of the repository stands in the site."""
    if path == "README.md":
        return HOME
    return path.removeprefix(DOCS) if path.startswith(DOCS) else REST + path


def repository_path(uri: str) -> str:
    """The other way round."""
    if uri == HOME:
        return "README.md"
    return uri.removeprefix(REST) if uri.startswith(REST) else DOCS + uri
