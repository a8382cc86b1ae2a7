"""The settings of a recording."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """`folder`, and the limits of all files in it: the oldest are removed. A file is closed when it has `file_bytes_max`
    compressed bytes, or is `file_age_max_s` old."""

    folder: Path
    bytes_max: int = 2**30
    age_max_s: float = 7 * 86_400.0
    file_bytes_max: int = 2**26
    file_age_max_s: float = 3_600.0
