"""Policies from files: bare texts, the keys of ConfigMaps in YAML, folders, and standard input.

What belongs together (the keys of one ConfigMap, the files of one folder) is one `SourceSet`, since `include` looks
there. Each text knows where it stands in its file, so that what is said about it points into the file that the user
has open.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from policysched.files import UnreadableFile, is_file, is_folder, read_text
from policysched.policy_files.source_set import PARAMETERS_SUFFIX, POLICY_SUFFIX, SourceSet, UnusableFile
from policysched.text import Source

_YAML_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_INCLUDED = re.compile(r'^[ \t]*include[ \t]+"([^"\n]+)"', re.MULTILINE)


def load_policy_sources(
    paths: Sequence[str],
    *,
    stdin: Callable[[], str] | None = None,
    stdin_name: str = "-",
    passed_over: list[UnusableFile] | None = None,
) -> list[SourceSet]:
    """What the paths hold, in their order.

    Raises UnusableFile for the first that cannot be used; with `passed_over` these are put there instead, and what is
    said of the other files is not lost.
    """

    def refuse(error: UnusableFile) -> None:
        if passed_over is None:
            raise error
        passed_over.append(error)

    sets: list[SourceSet] = []
    for path in paths:
        try:
            if path == "-":
                if stdin is None:
                    raise UnusableFile("-: standard input cannot be read here")
                sets.extend(parse_sources(_standard_input(stdin), stdin_name))
            elif is_folder(path):
                sets.extend(_folder(Path(path), refuse))
            else:
                sets.extend(parse_sources(_read(Path(path)), path))
        except UnusableFile as error:
            refuse(error)
    return sets


def parse_sources(text: str, name: str) -> list[SourceSet]:
    """One file's text. It is YAML where its name says so, or where it begins like a Kubernetes object."""
    if Path(name).suffix in _YAML_SUFFIXES or _looks_like_object(text):
        from policysched.policy_files.config_maps import (
            read_config_maps,  # imports yaml, which a bare policy does not need
        )

        sets = list(read_config_maps(text, name))
        if not sets:
            raise UnusableFile(f"{name}: no ConfigMap in it has a key that ends in {POLICY_SUFFIX}")
        return sets
    key = Path(name).name
    sources = {key: Source(name, text)}
    _add_included(sources, text, Path(name).parent)
    return [SourceSet(name, sources, frozenset({key}), {}, params=_parameter_files(Path(name).parent))]


def _folder(folder: Path, refuse: Callable[[UnusableFile], None]) -> Iterator[SourceSet]:
    """Every policy and every ConfigMap with policies below; a YAML file without any is passed over.

    `refuse` is told each file that cannot be used, and may raise.
    """
    from policysched.policy_files.config_maps import read_config_maps

    found = False
    here: dict[Path, dict[str, Source]] = {}
    for path in sorted(folder.rglob(f"*{POLICY_SUFFIX}")):
        if is_file(path):
            found = True
            try:
                here.setdefault(path.parent, {})[path.name] = Source(str(path), _read(path))
            except UnusableFile as error:
                refuse(error)
    for parent, sources in here.items():
        yield SourceSet(str(parent), sources, frozenset(sources), {}, params=_parameter_files(parent))
    for path in sorted(path for path in folder.rglob("*") if path.suffix in _YAML_SUFFIXES and is_file(path)):
        try:
            text = _read(path)
            sets = (
                tuple(read_config_maps(text, str(path)))
                if POLICY_SUFFIX in text and "ConfigMap" in text
                else ()
            )
        except UnusableFile as error:
            found = True
            refuse(error)
        else:
            found = found or bool(sets)
            yield from sets
    if not found:
        raise UnusableFile(
            f"{folder}: no policy below it (files that end in {POLICY_SUFFIX}, or ConfigMaps with such keys)"
        )


def _parameter_files(folder: Path) -> dict[str, Source]:
    """The files beside a policy with values for parameters."""
    return {
        path.name: Source(str(path), _read(path))
        for path in sorted(folder.glob(f"*{PARAMETERS_SUFFIX}"))
        if is_file(path)
    }


def _add_included(sources: dict[str, Source], text: str, folder: Path) -> None:
    """The files beside it that a text includes, and those that these include."""
    pending = _INCLUDED.findall(text)
    while pending:
        key = pending.pop()
        path = folder / key
        if key in sources or Path(key).name != key or not is_file(path):
            continue  # the checker says that it is missing
        sources[key] = Source(str(path), _read(path))
        pending.extend(_INCLUDED.findall(sources[key].text))


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except UnreadableFile as error:
        raise UnusableFile(f"{path}: {error}") from None


def _standard_input(read: Callable[[], str]) -> str:
    try:
        return read()
    except UnreadableFile as error:
        raise UnusableFile(f"-: {error}") from None


def _looks_like_object(text: str) -> bool:
    return re.match(r"(?:---|\s|#[^\n]*\n)*(?:apiVersion|kind)\s*:|\s*\{\s*\"", text) is not None
