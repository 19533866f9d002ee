"""The exceptions that penstock raises on purpose."""

from __future__ import annotations

from typing import Literal

Code = Literal[
    "InvalidArgument",
    "Unsupported",
    "NotFound",
    "CorruptFile",
    "OutOfMemory",
    "Timeout",
    "PeerFailed",
    "System",
    "Internal",
]


class Error(Exception):
    """Something went wrong; ``code`` says what kind of thing, and the text what was needed.

    code: "InvalidArgument" (a documented precondition is broken; nothing has been changed),
    "Unsupported" (this build or machine cannot do it), "NotFound", "CorruptFile", "OutOfMemory",
    "Timeout", "PeerFailed" (another rank failed; the text names it), "System" or "Internal".
    """

    code: Code

    def __init__(self, message: str, code: Code = "Internal") -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[Error], tuple[str, Code]]:
        return type(self), (str(self), self.code)


class InvalidArgument(Error, ValueError):
    """The error of code "InvalidArgument"; also a ``ValueError``."""

    def __init__(self, message: str, code: Code = "InvalidArgument") -> None:
        super().__init__(message, code)
