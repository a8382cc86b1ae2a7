"""Loads policies from files: plain texts, ConfigMaps in YAML, folders and standard input.

The keys of one ConfigMap or the files of one folder are one `SourceSet`, in which `include` looks up texts. Each text
knows its location in the file, so that diagnostics point into the file that the user has open.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from policysched.files import (
    UnreadableFile,
    files_below,
    is_file,
    is_folder,
    read_text,
    require_project_file,
    require_repository_file,
)
from policysched.policy_files.source_set import PARAMETERS_SUFFIX, POLICY_SUFFIX, SourceSet, UnusableFile
from policysched.text import Source

_YAML_SUFFIXES = (".yaml", ".yml", ".json")
_INCLUDED = re.compile(r'^[ \t]*include[ \t]+"([^"\n]+)"', re.MULTILINE)


def load_policy_sources(
    paths: Sequence[str],
    *,
    stdin: Callable[[], str] | None = None,
    stdin_name: str = "-",
    unusable: list[UnusableFile] | None = None,
) -> list[SourceSet]:
    """The source sets of the paths, in order.

    Raises UnusableFile for the first file that cannot be used. With `unusable` these errors are appended to that list
    instead, and the other files are still loaded.
    """

    def handle_error(error: UnusableFile) -> None:
        if unusable is None:
            raise error
        unusable.append(error)

    sets: list[SourceSet] = []
    for path in paths:
        try:
            if path == "-":
                if stdin is None:
                    raise UnusableFile("-: this command does not read standard input")
                sets.extend(parse_sources(_standard_input(stdin), stdin_name))
            else:
                require_repository_file(Path(path))
                if is_folder(path):
                    sets.extend(_folder(Path(path), handle_error))
                else:
                    sets.extend(parse_sources(_read(Path(path)), path))
        except UnreadableFile as error:
            handle_error(UnusableFile(f"{path}: {error}"))
        except UnusableFile as error:
            handle_error(error)
    return sets


def parse_sources(text: str, name: str) -> list[SourceSet]:
    """The source sets of one file. It is read as YAML by its suffix, or if it begins like a Kubernetes object."""
    if Path(name).suffix in _YAML_SUFFIXES or _looks_like_object(text):
        from policysched.policy_files.config_maps import (
            read_config_maps,  # imports yaml, which a bare policy does not need
        )

        sets = list(read_config_maps(text, name))
        if not sets:
            raise UnusableFile(f"{name}: contains no ConfigMap with a key that ends in {POLICY_SUFFIX}")
        return sets
    key = Path(name).name
    sources = {key: Source(name, text)}
    _add_included(sources, text, Path(name).parent)
    return [SourceSet(name, sources, frozenset({key}), {}, params=_parameter_files(Path(name).parent))]


def _folder(folder: Path, handle_error: Callable[[UnusableFile], None]) -> Iterator[SourceSet]:
    """Every policy and every ConfigMap with policies below the folder. Ignores other YAML files.

    `handle_error` is called for each file that cannot be used, and may raise.
    """
    from policysched.policy_files.config_maps import read_config_maps

    is_policy = False
    policies: dict[Path, dict[str, Source]] = {}
    for path in files_below(folder, (POLICY_SUFFIX,)):
        is_policy = True
        try:
            policies.setdefault(path.parent, {})[path.name] = Source(str(path), _read_found(path))
        except UnusableFile as error:
            handle_error(error)
    for parent, sources in policies.items():
        yield SourceSet(str(parent), sources, frozenset(sources), {}, params=_parameter_files(parent))
    for path in files_below(folder, _YAML_SUFFIXES):
        try:
            text = _read_found(path)
            sets = (
                tuple(read_config_maps(text, str(path)))
                if POLICY_SUFFIX in text and "ConfigMap" in text
                else ()
            )
        except UnusableFile as error:
            is_policy = True
            handle_error(error)
        else:
            is_policy = is_policy or bool(sets)
            yield from sets
    if not is_policy:
        raise UnusableFile(
            f"{folder}: contains no policy (files that end in {POLICY_SUFFIX}, or ConfigMaps with such keys)"
        )


def _parameter_files(folder: Path) -> dict[str, Source]:
    """The parameter files beside a policy."""
    return {
        path.name: Source(str(path), _read_found(path))
        for path in sorted(folder.glob(f"*{PARAMETERS_SUFFIX}"))
        if is_file(path)
    }


def _add_included(sources: dict[str, Source], text: str, folder: Path) -> None:
    """Adds the files that a text includes, transitively."""
    pending = _INCLUDED.findall(text)
    while pending:
        key = pending.pop()
        path = folder / key
        if key in sources or Path(key).name != key or not is_file(path):
            continue  # the checker reports a missing file
        sources[key] = Source(str(path), _read_found(path))
        pending.extend(_INCLUDED.findall(sources[key].text))


def _read_found(path: Path) -> str:
    """The text of a file that the user did not name: no link to a file outside the project."""
    try:
        require_project_file(path, path.parent)
    except UnreadableFile as error:
        raise UnusableFile(f"{path}: {error}") from None
    return _read(path)


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
