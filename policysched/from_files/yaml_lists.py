"""A long List as `kubectl get -o yaml` prints it, item by item: the parser needs fifty times the size of what it reads at once.

apiVersion: v1
items:
- apiVersion: v1      a line that begins with `- ` begins an item
  kind: Node
kind: List            the first other line that is not indented ends the list
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from policysched.yaml_values import InvalidYaml, read_yaml_documents

_ITEMS = re.compile(rb"^items:[ \t]*\r?\n(?=- )", re.MULTILINE)
_ITEM = re.compile(rb"^- ", re.MULTILINE)
_AFTER_ITEMS = re.compile(rb"^[^\s#-]", re.MULTILINE)
_ITEMS_KEY = re.compile(rb"^[\"']?items\b", re.MULTILINE)
_OTHER_FORM = re.compile(rb"^(?:---|\.\.\.|%)", re.MULTILINE)
"""Several documents, and directives. An alias of an anchor in another part is an error there, so that the text is read whole."""

_BYTES_PER_PART = 2**18


def read_list_by_items(
    text: bytes, progress: Callable[[int], None] = lambda _: None
) -> dict[str, Any] | None:
    """The plain values of the document, None if the text has another form or is not valid: then it is to be read whole, which
    gives the same, or says where the error is. `progress` gets the bytes that are read."""
    begin = _ITEMS.search(text)
    if begin is None or _OTHER_FORM.search(text) is not None:
        return None
    end = _AFTER_ITEMS.search(text, begin.end())
    stop = len(text) if end is None else end.start()
    try:
        rest = _only_document(text[: begin.start()] + b"items: []\n" + text[stop:])
        if not isinstance(rest, dict) or _ITEMS_KEY.search(text, stop) is not None:
            return None
        items: list[Any] = []
        done = begin.end()
        for part in _parts(text, begin.end(), stop):
            progress(done)
            done += len(part)
            values = _only_document(part)
            if not isinstance(values, list):
                return None
            items += values
    except InvalidYaml:
        return None
    return {**rest, "items": items}


def _parts(text: bytes, start: int, stop: int) -> Iterator[bytes]:
    """Whole items, several at a time."""
    begin = start
    for item in _ITEM.finditer(text, start, stop):
        if item.start() - begin >= _BYTES_PER_PART:
            yield text[begin : item.start()]
            begin = item.start()
    yield text[begin:stop]


def _only_document(text: bytes) -> Any:
    documents = [document.construct() for document in read_yaml_documents(text)]
    return documents[0] if len(documents) == 1 else None
