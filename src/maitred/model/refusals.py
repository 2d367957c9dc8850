"""Why a model is not loaded: one closed set of reasons, for the operator's eyes (callers never see their text)."""

from __future__ import annotations

from typing import ClassVar


class LoadRefused(Exception):
    """A model that was not loaded. `kind` is the reason in one word; the message says what to do."""

    kind: ClassVar[str] = "refused"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotFound(LoadRefused):
    """There is no artifact, file or name where the source points."""

    kind = "not_found"


class NotAnArtifact(LoadRefused):
    """The manifest is missing, unreadable or says what no artifact may say."""

    kind = "not_an_artifact"


class Corrupt(LoadRefused):
    """The files are not those that were packed, or are of a kind that no artifact may hold."""

    kind = "corrupt"


class Untrusted(LoadRefused):
    """Loading would run code that comes with the artifact, and nobody has said that it may."""

    kind = "untrusted"


class WrongVersions(LoadRefused):
    """The artifact was saved with libraries that differ too much from the installed ones."""

    kind = "wrong_versions"


class MissingExtra(LoadRefused):
    """A library that the flavor needs is not installed."""

    kind = "missing_extra"

    def __init__(self, flavor: str, library: str, extra: str) -> None:
        fix = f"pip install 'maitred[{extra}]'" if extra else f"pip install {library}"
        super().__init__(f"flavor {flavor} needs the library {library}, which is not installed: {fix}")
        self.extra = extra


class CannotLoad(LoadRefused):
    """The flavor could not make a model of the files."""

    kind = "cannot_load"


class ExampleDiffers(LoadRefused):
    """The model does not give the answer that was recorded with its example."""

    kind = "example_differs"


class CannotPack(LoadRefused):
    """The model cannot be written as an artifact."""

    kind = "cannot_pack"
