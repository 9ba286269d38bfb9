"""The JVM with Debezium's connectors, which read the changes of databases.

Theory. Debezium is a library of Kafka Connect: a *task* of its connector is started with properties
and polled for records. Kafka Connect would remember how far they were written; here nothing is
remembered in the JVM: a task begins at a place that it is given, and dies with its reader. The
platform needs no more of Connect than that, so it drives tasks itself.

The JVM runs no code of ours. It is reached through py4j, from the process that starts it and from
the workers of Spark that write the changes, each with the token of this JVM. What they share is
kept by name in the JVM's own table of properties: the task, records that were polled to see whether
there are any (`look`), and those that were handed out last. A list of records becomes one text in
the JVM, with a line of JSON for each: a call costs as much as many rows.

    task = engine.start("orders", "io.debezium.connector.postgresql.PostgresConnectorTask", {...})
    while lines := task.take():
        write(lines)
        task.confirm()      # the server may forget what is before the last commit of these
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError, Py4JJavaError

from fennel_core.connections.errors import ConnectionsError
from fennel_core.settings.model import Settings

OPENED: Final = (
    *("java.util", "java.util.stream", "java.util.concurrent"),
    *("java.lang", "java.lang.invoke"),
)
"""Packages of Java whose classes py4j calls methods of."""
JAVA_OPTIONS: Final = (
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
    "--add-opens=java.management/com.sun.jmx.mbeanserver=ALL-UNNAMED",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
    # What it logs with the whole stack is raised, too.
    "-Dorg.slf4j.simpleLogger.log.io.debezium.pipeline.ErrorHandler=off",
)
STDERR: Final = 2
CAUSES: Final = 8
"""Causes of an error that are looked through for the one that says most."""
COMMON: Final[Mapping[str, str]] = {
    # Values as text that JSON can hold, and nulls as they are: not as the default of the column.
    "converter.schemas.enable": "false",
    "converter.replace.null.with.default": "false",
    "decimal.handling.mode": "string",
    "time.precision.mode": "isostring",
    "binary.handling.mode": "base64",
    "interval.handling.mode": "string",
    # Every change is an event, and nothing else is.
    "tombstones.on.delete": "false",
    "skipped.operations": "none",
    # A task that fails ends: started again by itself, it would begin at another place.
    "errors.max.retries": "0",
    "poll.interval.ms": "100",
    "max.queue.size.in.bytes": str(16 * 1024 * 1024),
}
_TASK, _AHEAD, _LAST, _FORMAT, _VALUE, _JOIN = "task", "ahead", "last", "format", "value", "join"
_OFFSET, _TEXT, _STORE, _ROUND = "offset", "text", "store", "round"
POSTGRES_JARS: Final = "changes"
BINLOG_JARS: Final = "mysql-changes"
"""Folders of jars, one for each JVM: the connectors of MySQL and MariaDB have another version."""


class ChangeEngineFailed(ConnectionsError):
    """A task of the engine has ended, or its JVM has; the text has the database's own words.

    The source is read again from its position after a pause.
    """

    code: ClassVar[str] = "source-changes-ended"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where the JVM listens, on the loopback interface, and what it asks of its callers."""

    port: int
    token: str

    def __repr__(self) -> str:
        return f"EngineAddress({self.port})"


class ChangeTask:
    """A task that reads changes. The calls block, and raise `ChangeEngineFailed`.

    Use from one thread at a time, of any process that has the address.
    """

    def __init__(self, address: EngineAddress, name: str) -> None:
        self.name, self._address = name, address
        self._jvm: Any = _gateway(address).jvm

    def enter(self, number: int) -> None:
        """Begin a round, which takes changes; raise if it was begun before.

        Spark runs the task of a round again if its worker dies. What that had taken is not in the
        engine any more, and the changes after it must not be written without it.
        """
        with self._failures():
            before = self._table.put(self._key(_ROUND), number)
        if before == number:
            raise ChangeEngineFailed(
                f"a worker has ended while it read `{self.name}`; what it had taken is read again"
            )

    def look(self) -> bool:
        """Return whether there are changes that were not taken; wait a moment for some."""
        with self._failures():
            if self._get(_AHEAD) is None:
                found = self._get(_TASK).poll()
                if found:
                    self._put(_AHEAD, found)
            return self._get(_AHEAD) is not None

    def take(self) -> list[str]:
        """Return the next changes as lines of JSON; empty if there are none at this moment."""
        with self._failures():
            found = self._table.remove(self._key(_AHEAD))
            if found is None:
                found = self._get(_TASK).poll()
            if not found:
                return []
            self._put(_LAST, found)
            return self._lines(found)

    def confirm(self) -> None:
        """Let the server forget what is before the last commit of the changes that were taken."""
        with self._failures():
            last, task = self._get(_LAST), self._get(_TASK)
            if last is not None:
                task.commitRecord(last.get(last.size() - 1), None)
                task.commit()

    def stop(self) -> None:
        """End the task; it has let go of the database when this returns."""
        with self._failures():
            task = self._table.remove(self._key(_TASK))
            store = self._table.remove(self._key(_STORE))
            for each in (_AHEAD, _LAST, _FORMAT, _VALUE, _JOIN, _OFFSET, _TEXT, _ROUND):
                self._table.remove(self._key(each))
            try:
                if task is not None:
                    task.stop()
            finally:
                if store is not None:
                    store.stop()  # it has a thread, and the task asks it until its end

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Raise `ChangeEngineFailed` with the innermost cause of what Java raises."""
        try:
            yield
        except Py4JJavaError as failed:
            raise ChangeEngineFailed(_cause(failed.java_exception)) from failed
        except (Py4JError, OSError) as failed:
            _leave(self._address)
            raise ChangeEngineFailed(
                f"the engine of changes has ended while it read `{self.name}`: {failed}"
            ) from failed

    def _lines(self, found: Any) -> list[str]:
        text = found.stream().map(self._get(_FORMAT)).map(self._get(_VALUE))
        return str(text.collect(self._get(_JOIN))).split("\n")

    @property
    def _table(self) -> Any:
        return self._jvm.java.lang.System.getProperties()

    def _key(self, what: str) -> str:
        return f"fennel/{self.name}/{what}"

    def _get(self, what: str) -> Any:
        return self._table.get(self._key(what))

    def _put(self, what: str, value: Any) -> None:
        self._table.put(self._key(what), value)

    def begin(
        self, task_class: str, properties: Mapping[str, str], offset: Mapping[str, Any] | None
    ) -> None:
        """Start the task at an offset. `properties`: of Debezium, beside `COMMON`."""
        java, given = self._jvm, {**COMMON, **properties, **_names(self.name)}
        with self._failures():
            for what, value in _to_text(java, given).items():
                self._put(what, value)
            task, store = _class(java, task_class)(), _offset_store(java)
            self._put(_STORE, store)
            task.initialize(_context(java, self.name, store, offset))
            self._put(_TASK, task)
            task.start(given)


@dataclass(frozen=True, slots=True)
class LogBegin:
    """Where a task begins in a log, and what the tables are there.

    `history`: for each statement its database, its text, and what the engine said about tables.
    """

    offset: Mapping[str, Any]
    history: Sequence[tuple[str, str, list[Any]]]


class BinlogTask(ChangeTask):
    """A task that reads a binary log: `take` returns lines of the place, a tab, and the change."""

    def is_connected(self, connector: str) -> bool:
        """Return whether the server sends; a connection that is cut says nothing else."""
        return bool(self._metric(connector, "Connected"))

    def silent_s(self, connector: str) -> float:
        """Return for how long the server has sent nothing, not even its own heartbeats."""
        return float(self._metric(connector, "MilliSecondsSinceLastEvent") or 0) / 1000

    def received(self, connector: str) -> str:
        """Return the GTIDs that were received, also of statements of which there is no record."""
        return str(self._metric(connector, "GtidSet") or "")

    def _metric(self, connector: str, attribute: str) -> Any:
        java = self._jvm
        with self._failures():
            beans = java.java.lang.management.ManagementFactory.getPlatformMBeanServer()
            bean = java.javax.management.ObjectName(
                f"debezium.{connector}:type=connector-metrics,context=streaming,server={self.name}"
            )
            # A task that has just begun, or has ended, has none.
            return beans.getAttribute(bean, attribute) if beans.isRegistered(bean) else None

    def begin(
        self, task_class: str, properties: Mapping[str, str], offset: Mapping[str, Any] | None
    ) -> None:
        with self._failures():
            for what, value in _to_offsets(self._jvm).items():
                self._put(what, value)
        super().begin(task_class, properties, offset)

    def _lines(self, found: Any) -> list[str]:
        places = found.stream().map(self._get(_OFFSET)).map(self._get(_TEXT))
        texts = str(places.collect(self._get(_JOIN))).split("\n")
        lines = super()._lines(found)
        return [f"{place}\t{line}" for place, line in zip(texts, lines, strict=True)]


class ChangeEngine:
    """A JVM for the tasks of this process; it ends with it. Use from any thread."""

    def __init__(self, settings: Settings, jars: str = POSTGRES_JARS) -> None:
        found = change_jars(settings, jars)
        assert found, f"Debezium's jars are missing in {settings.jars_dir / jars}"
        self._folder = tempfile.TemporaryDirectory(prefix="fennel-changes-")
        home = os.environ.get("JAVA_HOME")
        [py4j] = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
        port, token, self._process = launch_gateway(
            jarpath=str(py4j),
            classpath=":".join(found),
            java_path=str(Path(home) / "bin" / "java") if home else "java",
            javaopts=[*JAVA_OPTIONS, f"-Xmx{settings.change_engine_mib}m"],
            die_on_exit=True,
            enable_auth=True,
            # py4j closes both when the JVM has ended.
            redirect_stdout=os.fdopen(os.dup(STDERR), "w"),
            redirect_stderr=os.fdopen(os.dup(STDERR), "w"),
            return_proc=True,
        )
        self.address = EngineAddress(port, token)
        _gateway(self.address).jvm.java.io.File(self._folder.name).deleteOnExit()

    def start(self, name: str, task_class: str, properties: Mapping[str, str]) -> ChangeTask:
        """Start a task; `name` is its own in this JVM. Raises `ChangeEngineFailed`; blocks."""
        task = ChangeTask(self.address, name)
        self._begin(task, task_class, properties, None)
        return task

    def start_binlog(
        self, name: str, task_class: str, properties: Mapping[str, str], begin: LogBegin | None
    ) -> BinlogTask:
        """Start a task that reads a binary log from a place on, or rows; raises as `start`."""
        task = BinlogTask(self.address, name)
        if begin is None:
            self._begin(task, task_class, properties, None)
            return task
        # It is read at the start, and not needed after that: a new task gets a history of its own.
        file = self.keep(f"{name}.history", "".join(_history(name, begin)))
        given = {
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": str(file),
        }
        self._begin(task, task_class, {**properties, **given}, begin.offset)
        return task

    def stop(self, task: ChangeTask) -> None:
        """End a task, and remove what it was given."""
        task.stop()
        (Path(self._folder.name) / f"{task.name}.history").unlink(missing_ok=True)

    def _begin(
        self,
        task: ChangeTask,
        task_class: str,
        properties: Mapping[str, str],
        offset: Mapping[str, Any] | None,
    ) -> None:
        try:
            task.begin(task_class, properties, offset)
        except BaseException:
            with suppress(ChangeEngineFailed):
                self.stop(task)
            raise

    def keep(self, name: str, text: str) -> Path:
        """Write a file that the JVM deletes when it ends, also when this process was killed."""
        file = Path(self._folder.name) / name
        file.write_text(text)
        _gateway(self.address).jvm.java.io.File(str(file)).deleteOnExit()
        return file

    def is_running(self) -> bool:
        """Return whether the JVM is there."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the JVM, with what runs in it."""
        _leave(self.address)
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


_engine_lock, _lock = threading.Lock(), threading.Lock()
_engines: dict[str, ChangeEngine] = {}
_gateways: dict[EngineAddress, JavaGateway] = {}


def change_jars(settings: Settings, jars: str) -> list[str]:
    """Return the jars of a JVM; empty if they were not installed."""
    return [str(path) for path in sorted((settings.jars_dir / jars).glob("*.jar"))]


def engine_of(settings: Settings, jars: str = POSTGRES_JARS) -> ChangeEngine:
    """Return the JVM of this process; start one if there is none that runs. Blocks."""
    with _engine_lock:
        if jars in _engines and not _engines[jars].is_running():
            _engines.pop(jars).close()
        if jars not in _engines:
            _engines[jars] = ChangeEngine(settings, jars)
        return _engines[jars]


def _gateway(address: EngineAddress) -> JavaGateway:
    """Return the connections of this process to a JVM."""
    with _lock:
        if address not in _gateways:
            given = GatewayParameters(
                port=address.port, auth_token=address.token, auto_convert=True
            )
            _gateways[address] = JavaGateway(gateway_parameters=given)
        return _gateways[address]


def _leave(address: EngineAddress) -> None:
    """Forget the connections to a JVM that may be gone.

    Objects of it that are collected later would call it, and log each failure.
    """
    with _lock:
        gateway = _gateways.pop(address, None)
    if gateway is not None:
        gateway._gateway_client.is_connected = False


def _names(name: str) -> dict[str, str]:
    # The prefix of topics is the name of the task's metrics, of which a JVM has one of each.
    return {"name": name, "topic.prefix": name}


def _class(java: Any, name: str) -> Any:
    """Return a class by its name; calling it makes an object."""
    found = java
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _to_text(java: Any, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return Java's functions that make a line of JSON of a record, its value, and one text of all.

    `ChangeEvent.value` becomes a function by a method handle: py4j cannot name a method.
    """
    types, invoke = java.java.lang.Class, java.java.lang.invoke
    form, held = types.forName("io.debezium.engine.format.Json"), java.java.util.Properties()
    for key, value in properties.items():
        held.setProperty(key, value)
    formats = java.io.debezium.engine.format.KeyValueHeaderChangeEventFormat.of(form, form, form)
    converter = java.io.debezium.embedded.ConverterBuilder().using(formats).using(held)
    value = invoke.MethodHandles.lookup().findVirtual(
        types.forName("io.debezium.engine.ChangeEvent"),
        "value",
        invoke.MethodType.methodType(types.forName("java.lang.Object")),
    )
    function = types.forName("java.util.function.Function")
    return {
        _FORMAT: converter.toFormat(converter.headerConverter()),
        _VALUE: invoke.MethodHandleProxies.asInterfaceInstance(function, value),
        _JOIN: java.java.util.stream.Collectors.joining("\n"),
    }


def _to_offsets(java: Any) -> dict[str, Any]:
    """Return Java's functions that make a line of JSON of where a record is."""
    types, invoke = java.java.lang.Class, java.java.lang.invoke
    function, lookup = types.forName("java.util.function.Function"), invoke.MethodHandles.lookup()
    offset = lookup.findVirtual(
        types.forName("org.apache.kafka.connect.source.SourceRecord"),
        "sourceOffset",
        invoke.MethodType.methodType(types.forName("java.util.Map")),
    )
    texts = types.forName("com.fasterxml.jackson.databind.ObjectMapper")
    text = lookup.findVirtual(
        texts,
        "writeValueAsString",
        invoke.MethodType.methodType(
            types.forName("java.lang.String"), types.forName("java.lang.Object")
        ),
    ).bindTo(java.com.fasterxml.jackson.databind.ObjectMapper())
    make = invoke.MethodHandleProxies.asInterfaceInstance
    return {_OFFSET: make(function, offset), _TEXT: make(function, text)}


def _history(name: str, begin: LogBegin) -> Iterator[str]:
    """Yield the lines of a history as the engine keeps it."""
    for database, statement, tables in begin.history:
        line = {
            "source": {"server": name},
            "position": begin.offset,
            "ts_ms": 0,
            "databaseName": database,
            "ddl": statement,
            "tableChanges": tables,
        }
        yield json.dumps(line) + "\n"


def _offset_store(java: Any) -> Any:
    """Return a store of Kafka Connect that remembers nothing when it ends."""
    store = java.io.debezium.embedded.KafkaConnectUtil.memoryOffsetBackingStore()
    store.start()
    return store


def _context(java: Any, name: str, store: Any, offset: Mapping[str, Any] | None) -> Any:
    """Return what Kafka Connect gives to a task: nothing is remembered but an offset."""
    connect = java.org.apache.kafka.connect
    converters = []
    for is_key in (True, False):
        converter = connect.json.JsonConverter()
        converter.configure({"schemas.enable": "false"}, is_key)
        converters.append(converter)
    if offset is not None:
        writer = connect.storage.OffsetStorageWriter(store, name, *converters)
        writer.offset({"server": name}, offset)
        writer.beginFlush()
        writer.doFlush(None).get()
    reader = connect.storage.OffsetStorageReaderImpl(store, name, *converters)
    task = connect.util.ConnectorTaskId(name, 0)
    return connect.runtime.WorkerSourceTaskContext(reader, task, None, None, None)


def _cause(raised: Any) -> str:
    texts = [type(raised).__name__]
    for _ in range(CAUSES):
        if raised is None:
            break
        text = raised.getMessage()
        if text:
            texts.append(str(text).strip().splitlines()[0])
        raised = raised.getCause()
    return texts[-1]
