"""The names of what AWS has, as far as connectors have them."""

from __future__ import annotations

import re
from typing import Final

STREAM_ARN: Final = re.compile(
    r"arn:aws[a-z-]*:kinesis:([a-z0-9-]+):([0-9]{12}):stream/([a-zA-Z0-9_.-]{1,128})"
)
"""Of a Kinesis stream: its region, account and name."""
ROLE_ARN: Final = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]{1,512}")
