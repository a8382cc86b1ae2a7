"""What an import has to say beside the policies: what could not be expressed, and what need not be."""

from dataclasses import dataclass, field

from policysched.migrate.located_document import LocatedDocument, Path, path_text


@dataclass(frozen=True, slots=True)
class ImportNote:
    """`where` names the part of the configuration (`profiles[0].plugins.score.enabled[1]`), `line` and `column` its
    place in `file`. `profile` is the profile it is about, None where it is about all of them."""

    file: str
    where: str
    line: int
    column: int
    what: str
    why: str
    profile: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.where}: {self.what}: {self.why}"


@dataclass(slots=True)
class ImportReport:
    """`not_imported` changes what is decided; `notes` do not."""

    document: LocatedDocument
    profile: int | None = None
    not_imported: list[ImportNote] = field(default_factory=list)
    notes: list[ImportNote] = field(default_factory=list)

    def add_not_imported(self, path: Path, what: str, why: str) -> None:
        """Something that kube-scheduler would do and the policy does not."""
        self._add(self.not_imported, path, what, why)

    def add_note(self, path: Path, what: str, why: str) -> None:
        """Something that has no counterpart and needs none."""
        self._add(self.notes, path, what, why)

    def _add(self, items: list[ImportNote], path: Path, what: str, why: str) -> None:
        at = self.document.place(path)
        item = ImportNote(
            self.document.name, path_text(path) or "(top level)", at.line, at.column, what, why, self.profile
        )
        if all((one.what, one.why, one.where) != (what, why, item.where) for one in items):
            items.append(item)
