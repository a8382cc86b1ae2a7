"""The report of an import: what could not be expressed, and what has no counterpart."""

from dataclasses import dataclass, field

from policysched.migrate.located_document import LocatedDocument, Path, path_text


@dataclass(frozen=True, slots=True)
class ImportNote:
    """An entry of the report.

    `where` is the path in the configuration (`profiles[0].plugins.score.enabled[1]`), `line` and `column`
    its position in `file`. `profile` is the index of the profile, None for all profiles.
    """

    file: str
    where: str
    line: int
    column: int
    subject: str
    reason: str
    profile: int | None = None

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def finding(self) -> str:
        named = self.where if self.where == self.subject else f"{self.where}: {self.subject}"
        return f"{named}: {self.reason}"

    def __str__(self) -> str:
        return f"{self.place}: {self.finding}"


@dataclass(slots=True)
class ImportReport:
    """`not_imported` entries change scheduling decisions; `notes` do not."""

    document: LocatedDocument
    profile: int | None = None
    not_imported: list[ImportNote] = field(default_factory=list)
    notes: list[ImportNote] = field(default_factory=list)

    def add_not_imported(self, path: Path, subject: str, reason: str) -> None:
        """Record something that kube-scheduler does and the policy does not."""
        self._add(self.not_imported, path, subject, reason)

    def add_note(self, path: Path, subject: str, reason: str) -> None:
        """Record something that has no counterpart and needs none."""
        self._add(self.notes, path, subject, reason)

    def _add(self, items: list[ImportNote], path: Path, subject: str, reason: str) -> None:
        at = self.document.place(path)
        item = ImportNote(
            self.document.name,
            path_text(path) or "(top level)",
            at.line,
            at.column,
            subject,
            reason,
            self.profile,
        )
        if all(
            (existing.subject, existing.reason, existing.where) != (subject, reason, item.where)
            for existing in items
        ):
            items.append(item)
