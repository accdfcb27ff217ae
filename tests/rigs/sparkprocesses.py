"""Python processes that start a Spark of their own, as a user's would, and Spark's own servers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import polonaise
from polonaise.spark.java import find_java
from polonaise.spark.sessions import QUICK_START
from rigs.programs import run_program
from rigs.quickspark import without_spark
from rigs.waiting import block_until

SOURCE = str(Path(polonaise.__file__).parents[1])
STARTED_S = 300.0
_PROGRAMS = ("sh", "bash", "dirname", "cat", "env", "uname", "ps")
"""Programs that Spark's scripts call."""


def path_without_java(directory: Path) -> str:
    """Return a `PATH` that has the programs which Spark's scripts call, but no Java."""
    directory.mkdir(exist_ok=True)
    for name in _PROGRAMS:
        if (program := shutil.which(name)) is not None and not (directory / name).exists():
            (directory / name).symlink_to(program)
    return str(directory)


def run(
    script: str, tmp_path: Path, *, command: tuple[str, ...] = (sys.executable,), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script, with no Spark variables in its environment but those given here, and a quick Java."""
    file = tmp_path / "script.py"
    file.write_text(script)
    variables = {**without_spark("JAVA"), "PYTHONPATH": SOURCE, **environment}
    return run_program(*command, file, env=variables, cwd=tmp_path, within_s=STARTED_S)


# ------------------------------------------------------------------ Spark's servers


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """Run a Spark Connect server. Yield its address."""
    settings = ("spark.ui.enabled=false", "spark.connect.grpc.binding.port=0", "spark.driver.host=127.0.0.1",
                f"spark.driver.extraJavaOptions={QUICK_START}", "spark.log.level=INFO")  # fmt: skip
    command = [_spark("bin/spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += [word for setting in settings for word in ("--conf", setting)]
    started = r"Spark Connect server started at: \S*:(?P<port>\d+)"
    with _server([*command, "spark-internal"], directory, "connect", started) as said:
        yield f"sc://127.0.0.1:{said['port']}"


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[str]:
    """Run a Spark cluster with one worker of two cores. Yield its master's address."""
    here = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    kind = "org.apache.spark.deploy"
    master = [_spark("bin/spark-class"), f"{kind}.master.Master", *here]
    worker = [_spark("bin/spark-class"), f"{kind}.worker.Worker", *here, "--cores", "2", "--memory", "2g"]
    worker += ["--work-dir", str(directory / "executors")]
    with _server(master, directory, "master", r"Starting Spark master at (?P<address>spark://\S+)") as said:
        address = said["address"]
        with _server([*worker, address], directory, "worker", "Successfully registered with master"):
            yield address


def _spark(program: str) -> str:
    """Return the path of a program that comes with PySpark."""
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    return str(Path(pyspark.origin).parent / program)


@contextmanager
def _server(command: list[str], directory: Path, name: str, started: str) -> Iterator[re.Match[str]]:
    """Run a server: yield once it prints that it is ready, and kill it at the end with all that it has started."""
    log = directory / f"{name}.log"
    environment = {
        **os.environ, "JAVA_HOME": find_java().home, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": SOURCE,
        "SPARK_DAEMON_JAVA_OPTS": QUICK_START, "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=directory,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield _said(log, server, started)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)


def _said(log: Path, server: subprocess.Popen[bytes], pattern: str) -> re.Match[str]:
    def look() -> re.Match[str] | None:
        assert server.poll() is None, log.read_text()[-3000:]
        return re.search(pattern, log.read_text())

    found = block_until(look, f"{pattern} in {log}", within_s=STARTED_S, every_s=0.1)
    assert found is not None
    return found
