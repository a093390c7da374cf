"""Errors that are not plain ValueError or FileNotFoundError."""


class MissingExtra(ImportError):
    """A feature needs a package that comes with an extra of hyvlm which is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}: pip install 'hyvlm[{extra}]'")
