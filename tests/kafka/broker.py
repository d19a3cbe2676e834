"""A real Apache Kafka broker on this machine, for tests, benchmarks and `make kafka-up`.

One KRaft node run from the jars that `pom.xml` names; needs a JDK 17 and, the first time, Maven.
What the tests say to the broker belongs in them, not here. Every method blocks: inside an event
loop call `await asyncio.to_thread(broker.restart)`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "kafka"
HOST = "127.0.0.1"
USER = "corald"
PASSWORD = "correct-horse"
LISTENERS = {  # listener name -> security protocol
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "MTLS": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
}
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
STARTED = "Kafka Server started"


class KafkaTestbedError(RuntimeError):
    """The broker or its jars could not be had; the message says what to do."""


def kafka_version() -> str:
    """The version `pom.xml` asks for."""
    found = re.search(r"<kafka\.version>(.+?)<", (HERE / "pom.xml").read_text())
    if found is None:
        raise KafkaTestbedError(f"{HERE / 'pom.xml'} names no kafka.version")
    return found[1]


def fetch_jars() -> Path:
    """The folder of the broker's jars, filled by Maven the first time (about 10 s, 43 MB)."""
    libs = CACHE / kafka_version() / "libs"
    if libs.is_dir():
        return libs
    mvn = _program("mvn", "maven")
    libs.parent.mkdir(parents=True, exist_ok=True)
    # Maven fills a scratch folder, renamed when whole: half a download is never taken for the jars.
    with tempfile.TemporaryDirectory(dir=libs.parent) as scratch:
        whole = Path(scratch) / "libs"
        command = [mvn, "-B", "-q", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
        _run([*command, f"-DoutputDirectory={whole}"])
        try:
            whole.rename(libs)
        except OSError:
            if not libs.is_dir():  # else another run was quicker, and its jars are as good
                raise
    return libs


class KafkaBroker:
    """One broker whose data folder and ports outlive `stop()`, so `restart()` finds both again.

    As a context manager it starts, and at the end stops and removes its data unless `folder` was
    given. `port` and the next one replace free ports; `settings` are further server properties.
    `secure=True` opens every listener of LISTENERS: the SASL ones take USER and PASSWORD by PLAIN
    and SCRAM; `ca_file` signed the broker's certificate; MTLS wants `client_cert`, `client_key`.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int | None = None,
        secure: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="corald-kafka-"))
        self._names = tuple(LISTENERS) if secure else ("PLAINTEXT",)
        self._ports = dict(zip((*self._names, "CONTROLLER"), _free_ports(6), strict=False))
        if port is not None:
            self._ports |= {"PLAINTEXT": port, "CONTROLLER": port + 1}
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self.log_file = self.folder / "broker.log"
        self.ca_file = self.folder / "ca.pem"
        self.client_cert = self.folder / "client.pem"
        self.client_key = self.folder / "client.key"

    @property
    def bootstrap(self) -> str:
        """The address of the PLAINTEXT listener."""
        return self.address("PLAINTEXT")

    def address(self, listener: str) -> str:
        """The host:port of a listener of LISTENERS."""
        return f"{HOST}:{self._ports[listener]}"

    @property
    def pid(self) -> int:
        """The broker's process id; an error when it is not running."""
        if self._process is None or self._process.poll() is not None:
            raise KafkaTestbedError(f"the broker is not running; its log: {self.log_file}")
        return self._process.pid

    def start(self, *, timeout: float = 60.0, detached: bool = False) -> None:
        """Start and wait until the broker serves (2 s), laying out its storage if it is new."""
        if self._process is not None:
            raise KafkaTestbedError("the broker runs already")
        java = [_program("java", "openjdk-17-jre-headless"), *JVM, *_logging(), "-cp"]
        java.append(f"{fetch_jars()}/*")
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        if "SSL" in self._names and not self.ca_file.exists():
            _make_keys(self.folder)
        properties.write_text("".join(f"{k}={v}\n" for k, v in self._properties().items()))
        if not (self.folder / "data" / "meta.properties").exists():
            self._format(java, properties)
        with self.log_file.open("ab") as log:
            said_before = log.tell()
            self._process = subprocess.Popen(
                [*java, "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=detached,
            )
        if not detached:
            self._guard = _end_with_us(self._process.pid)
        self._await_started(said_before, time.monotonic() + timeout)

    def stop(self, *, timeout: float = 20.0) -> None:
        """SIGTERM, then SIGKILL after the timeout; the data stays. No matter if not running."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)  # a paused broker hears SIGTERM only then
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._forget()

    def kill(self) -> None:
        """SIGKILL: the broker dies as in a power cut; `start()` then recovers its data."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def restart(self) -> None:
        """Stop and start again on the same ports and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop, and remove the data when the folder is a temporary one."""
        self.stop()
        if self._temporary:
            shutil.rmtree(self.folder)

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until its partitions have leaders; it must not exist yet."""
        _in_own_loop(_create_topic(self.bootstrap, name, partitions, dict(configs or {})))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _properties(self) -> dict[str, str]:
        ports = self._ports
        clients = ",".join(f"{name}://{HOST}:{ports[name]}" for name in self._names)
        protocols = {name: LISTENERS[name] for name in self._names} | {"CONTROLLER": "PLAINTEXT"}
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{ports['CONTROLLER']}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{clients},CONTROLLER://{HOST}:{ports['CONTROLLER']}",
            "advertised.listeners": clients,
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            # After a crash the node waits for its former self's session to end.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "1000",
            "log.cleaner.dedupe.buffer.size": str(8 << 20),  # the default takes 128 MB
        }
        if "SSL" in self._names:
            properties |= self._security()
        return properties | self._settings

    def _security(self) -> dict[str, str]:
        package = "org.apache.kafka.common.security"
        properties = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca_file),
            "listener.name.mtls.ssl.client.auth": "required",
        }
        for name in ("sasl_plaintext", "sasl_ssl"):
            listener = f"listener.name.{name}"
            properties[f"{listener}.sasl.enabled.mechanisms"] = ",".join(("PLAIN", *SCRAM))
            properties[f"{listener}.plain.sasl.jaas.config"] = (
                f'{package}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            )
            for mechanism in SCRAM:
                properties[f"{listener}.{mechanism.lower()}.sasl.jaas.config"] = (
                    f"{package}.scram.ScramLoginModule required;"
                )
        return properties

    def _format(self, java: list[str], properties: Path) -> None:
        command = [*java, "kafka.tools.StorageTool", "format", "-c", str(properties)]
        command += ["-t", "corald-testbed-broker0"]  # a cluster id: any 22 characters of base64
        if "SSL" in self._names:
            for mechanism in SCRAM:
                command += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        _run(command)

    def _await_started(self, said_before: int, deadline: float) -> None:
        while STARTED not in self._said(said_before):
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                tail = self._said(said_before)[-2000:]
                raise KafkaTestbedError(
                    f"the broker did not start; end of {self.log_file}:\n{tail}"
                )
            time.sleep(0.05)

    def _forget(self) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        if self._process is not None:
            self._process.wait()
            self._process = None

    def _said(self, since: int) -> str:
        with self.log_file.open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")


async def _create_topic(
    bootstrap: str, name: str, partitions: int, configs: dict[str, str]
) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        topic = NewTopic(name, partitions, 1, topic_configs=configs)
        response = await admin.create_topics([topic])
        _, code, message = response.topic_errors[0]
        if code:
            raise KafkaTestbedError(f"topic {name} was not created: error {code}, {message}")
        while True:
            (described,) = await admin.describe_topics([name])
            leaders = [p["leader"] for p in described["partitions"]]
            if len(leaders) == partitions and min(leaders) >= 0:
                return
            await asyncio.sleep(0.02)
    finally:
        await admin.close()


def _end_with_us(pid: int) -> subprocess.Popen[bytes]:
    """A shell that ends the broker when we are killed: the pipe to it breaks then."""
    script = 'read -r _; kill -TERM "$0"; kill -CONT "$0"'
    return subprocess.Popen(["sh", "-c", script, str(pid)], stdin=subprocess.PIPE)


def _in_own_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a thread, so that callers inside an event loop may call us as well."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


def _free_ports(count: int) -> list[int]:
    """Ports below the ephemeral range.

    A port of that range may be taken by any client while the broker is down, even by one that tries
    to reach the broker: TCP then connects it to itself.
    """
    ports: list[int] = []
    for port in random.sample(range(12_000, 32_000), 2_000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise KafkaTestbedError("no free port on 127.0.0.1 between 12000 and 32000")


def _make_keys(folder: Path) -> None:
    """A certificate authority, and a broker's and a client's certificate signed by it."""
    openssl = _program("openssl", "openssl")
    new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    ca = ["-CA", "ca.pem", "-CAkey", "ca.key"]

    def make(name: str, subject: str, *options: str) -> None:
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
        _run([openssl, *new, "-subj", f"/CN={subject}", *files, *options], folder)

    leaf = [*ca, "-addext", "basicConstraints=critical,CA:FALSE"]
    make("ca", "corald test authority")
    make("client", USER, *leaf)
    make("broker", "localhost", *leaf, "-addext", f"subjectAltName=DNS:localhost,IP:{HOST}")
    # Kafka reads key and chain from one file.
    key, chain = folder / "broker.key", folder / "broker.pem"
    chain.write_text(key.read_text() + chain.read_text())


def _logging() -> list[str]:
    simple = "-Dorg.slf4j.simpleLogger"
    stamp = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"
    return [f"{simple}.showDateTime=true", f"{simple}.dateTimeFormat={stamp}"]


def _program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise KafkaTestbedError(
            f"{name} is not installed, and the Kafka broker needs it: apt-get install {package}"
        )
    return path


def _run(command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-2000:]
        raise KafkaTestbedError(f"failed ({done.returncode}): {' '.join(command)}\n{said}")


def _pid_of(folder: Path) -> int | None:
    """The process of the broker started from this folder, if it still is one."""
    try:
        pid = int((folder / "pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return pid if str(folder / "server.properties") in command else None


def up(port: int) -> str:
    """Start a broker that stays, with data in `.cache/kafka/dev`; the address it serves at."""
    folder = CACHE / "dev"
    broker = KafkaBroker(folder, port=port, settings={"auto.create.topics.enable": "true"})
    if _pid_of(folder) is None:
        broker.start(detached=True)
        (folder / "pid").write_text(str(broker.pid))
        (folder / "bootstrap").write_text(broker.bootstrap)
    return (folder / "bootstrap").read_text()


def down() -> bool:
    """Stop the broker `up` started and keep its data; whether there was one."""
    folder = CACHE / "dev"
    pid = _pid_of(folder)
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while _pid_of(folder) == pid:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    (folder / "pid").unlink()
    return True


def main() -> None:
    """`broker.py up [--port 9092]` prints the bootstrap address; `broker.py down` stops it."""
    parser = argparse.ArgumentParser(description="A local Apache Kafka broker for development.")
    parser.add_argument("action", choices=("up", "down"))
    parser.add_argument("--port", type=int, default=9092)
    options = parser.parse_args()
    try:
        if options.action == "up":
            said = up(options.port)
        else:
            said = "stopped" if down() else "no broker was running"
    except KafkaTestbedError as error:
        raise SystemExit(f"kafka: {error}") from None
    sys.stdout.write(f"{said}\n")


if __name__ == "__main__":
    main()
