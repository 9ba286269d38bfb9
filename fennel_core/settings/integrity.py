"""Settings of integrity checks: samples of lookups that are compared with recomputes."""

from pydantic import Field
from pydantic_settings import BaseSettings


class IntegritySettings(BaseSettings):
    """When lookups are checked, and how much a check reads."""

    integrity_schedule: str = Field(
        "0 4 * * *",
        description="When samples of lookups are recomputed from history and compared: cron "
        "expression, UTC. Empty: never.",
    )
    integrity_keys: int = Field(
        20,
        gt=0,
        le=10_000,
        description="Keys of each dataset that a check samples.",
    )
    integrity_bytes: int = Field(
        1024**3,
        gt=0,
        description="A check skips partitions of topics whose history has more bytes, because it "
        "reads all of it to find the rows of its keys.",
    )
