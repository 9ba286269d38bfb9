"""S3 on a folder, served by s3proxy.

Buckets are created through the protocol, so that any other S3 server can take its place.
"""

from typing import Final

from fennel_core.apps.errors import SetupFailed
from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.host_environment import HostEnvironment
from fennel_core.settings.model import Settings

JVM: Final = (
    "-Xms32m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
    "-DLOG_LEVEL=warn",
)
"""It holds a signed request in memory, twice while receiving it: two slots that each upload four
files of 16 MiB must fit.
"""


def command(layout: FileLayout, host: HostEnvironment) -> tuple[str, ...]:
    jar = layout.jars / "s3" / "s3proxy-4.1.0-jar-with-dependencies.jar"
    return (
        host.java,
        *JVM,
        "-jar",
        str(jar),
        "--properties",
        str(layout.data / "s3" / "s3proxy.conf"),
    )


def configure(settings: Settings, layout: FileLayout) -> None:
    """Write the configuration, readable by its owner only: it contains the secret key."""
    folder = layout.data / "s3"
    objects = folder / "objects"
    objects.mkdir(parents=True, exist_ok=True, mode=0o700)
    values = {
        "s3proxy.endpoint": f"http://{settings.host}:{settings.s3_port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": settings.s3_access_key,
        "s3proxy.credential": settings.s3_secret_key.get_secret_value(),
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(objects),
        # The library requires them although a folder needs no login.
        "jclouds.identity": "unused",
        "jclouds.credential": "unused",
    }
    file = folder / "s3proxy.conf"
    file.touch(mode=0o600)
    file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))


def make_bucket(settings: Settings) -> None:
    """Create the bucket if it is missing; raises SetupFailed if the server refuses."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.client(
        "s3",
        endpoint_url=settings.s3_endpoint,
        region_name=settings.s3_region,
        aws_access_key_id=settings.s3_access_key,
        aws_secret_access_key=settings.s3_secret_key.get_secret_value(),
    )
    try:
        if settings.s3_bucket not in {
            bucket["Name"] for bucket in client.list_buckets()["Buckets"]
        }:
            client.create_bucket(Bucket=settings.s3_bucket)
    except (BotoCoreError, ClientError) as error:
        raise SetupFailed(
            f"S3 is running but the bucket {settings.s3_bucket} cannot be created ({error})"
        ) from error
