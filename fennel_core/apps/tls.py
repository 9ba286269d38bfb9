"""TLS of the public port: the certificate is reloaded when its file changes.

New connections use a new certificate within seconds, without a restart; connections that exist keep
theirs. A pair of files that does not fit is logged and the former one stays in use.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from fennel_core.apps.errors import SetupFailed
from fennel_core.apps.http_protection import TlsFiles
from fennel_core.telemetry.logs import logger

CHECK_EVERY_S: Final = 5.0

log = logger(__name__)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later; raises SetupFailed for files that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, files)
    return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ValueError) as unusable:
        raise SetupFailed(
            f"the certificate {files.certificate} and the key {files.key} cannot be used "
            f"({unusable}); correct FENNEL_TLS_CERTIFICATE and FENNEL_TLS_KEY"
        ) from unusable


async def reload_on_change(
    context: ssl.SSLContext, files: TlsFiles, every_s: float = CHECK_EVERY_S
) -> None:
    """Load the files into `context` whenever they have changed, until this is cancelled."""
    seen = _stamps(files)
    while True:
        await asyncio.sleep(every_s)
        found = _stamps(files)
        if found in (seen, None):
            continue
        try:
            server_context(files)  # a pair that does not fit must not touch the one in use
            _load(context, files)
        except SetupFailed as unusable:
            log.error("certificate not reloaded", reason=str(unusable))
        else:
            log.info("certificate reloaded", certificate=str(files.certificate))
        # A pair that is replaced file by file changes once more.
        seen = found


def _stamps(files: TlsFiles) -> tuple[tuple[int, int], ...] | None:
    """Return what changes with the files; None while one is missing."""
    try:
        stats = [path.stat() for path in (files.certificate, files.key)]
    except OSError:
        return None
    return tuple((each.st_mtime_ns, each.st_ino) for each in stats)
