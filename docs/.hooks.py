"""What the site changes in the pages, which are written for GitHub."""

import re
from pathlib import PurePosixPath
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)\s#]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Point links that leave docs/ to the repository (their text alone, if `DOCS_REPO_URL` is not set), and name it in commands."""

    def outside(match: re.Match[str]) -> str:
        parts: list[str] = []
        for part in ("docs", *PurePosixPath(page.file.src_uri).parent.parts, *PurePosixPath(match[2]).parts):
            if part == "..":
                parts.pop()
            else:
                parts.append(part)
        if parts[0] == "docs":
            return match[0]
        if not config.repo_url:
            return match[1]
        return f"[{match[1]}]({config.repo_url.rstrip('/')}/blob/main/{'/'.join(parts)}{match[3] or ''})"

    if config.repo_url:
        markdown = markdown.replace('"$REPOSITORY"', config.repo_url)
    # The words after the language of a fence are for this project's tests.
    return re.sub(r"^( *```\w+) .*$", r"\1", _LINK.sub(outside, markdown), flags=re.MULTILINE)
