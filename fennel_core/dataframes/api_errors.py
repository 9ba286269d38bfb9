"""Errors of reads over the API: what a reader receives as status, stable code and text."""

from __future__ import annotations

from fennel_core.vocab.errors import ClassifiedApiError


class DataframeApiError(ClassifiedApiError):
    """Base class of these errors. `CODE` is stable and never reused."""

    CODE = "dataframe"


class ReadRefused(DataframeApiError):
    """The dataset cannot be read as the request says; the text says what to change."""

    STATUS = 400
    CODE = "dataframe-refused"


class TopicUnknown(DataframeApiError):
    """The topic is not the content of a dataset of the workspace, or not any more."""

    STATUS = 404
    CODE = "dataframe-topic-unknown"

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic `{topic}` is not the content of a dataset of this workspace; load the "
            "DataFrame again if its dataset was changed since"
        )


class FileUnknown(DataframeApiError):
    """History has no such file."""

    STATUS = 404
    CODE = "dataframe-file-unknown"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"history has no file `{key}`; load the DataFrame again, and restore the object from "
            "a backup of the bucket if it is missing then, too"
        )


class RangeInvalid(DataframeApiError):
    """The range of a file is empty, negative, or larger than one response."""

    STATUS = 400
    CODE = "dataframe-range"

    def __init__(self, first: int, size: int, most: int) -> None:
        super().__init__(
            f"a range of {size} bytes from {first} cannot be read; ask for 1 to {most} bytes from "
            "0 or later"
        )
