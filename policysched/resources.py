"""Where the files beside the code are: in the package when installed, at the top of the checkout when not."""

from pathlib import Path


def resource(*parts: str) -> Path:
    """The path of a shipped file, such as `resource("grammar", "policy.lark")`."""
    installed = Path(__file__).parent / "_data"
    return (installed if installed.is_dir() else Path(__file__).parent.parent).joinpath(*parts)
