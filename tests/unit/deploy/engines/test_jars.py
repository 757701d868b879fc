"""What Maven is asked for, and the archives of classes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from deploy.engines import cassandra, jars, kafka
from deploy.engines.machine import Java

_JAVA = Java("/bin/java", 17, 'openjdk version "17.0.15"')


def test_maven_is_asked_for_one_version_of_each() -> None:
    """What an engine brings without need is left out."""
    namespace = {"m": "http://maven.apache.org/POM/4.0.0"}
    root = ElementTree.fromstring(jars.pom(kafka.JARS))
    found = {
        one.findtext("m:artifactId", namespaces=namespace): one.findtext("m:version", namespaces=namespace)
        for one in root.iterfind("m:dependencies/m:dependency", namespace)
    }
    assert found == {"kafka_2.13": kafka.VERSION, "kafka-tools": kafka.VERSION, "slf4j-simple": "1.7.36"}
    left_out = root.iterfind(".//m:exclusion/m:artifactId", namespace)
    assert [one.text for one in left_out] == ["connect-runtime", "jackson-jakarta-rs-json-provider"]


def test_jars_are_there_when_all_of_them_are(tmp_path: Path) -> None:
    """A fetch that was cut off left no mark; a mark whose jars were removed is none."""
    library = jars.library(tmp_path, cassandra.JARS)
    library.mkdir(parents=True)
    (library / cassandra.JARS.witness).touch()
    assert not jars.is_fetched(tmp_path, cassandra.JARS)
    (library.parent / ".complete").touch()
    assert jars.is_fetched(tmp_path, cassandra.JARS)
    (library / cassandra.JARS.witness).unlink()
    assert not jars.is_fetched(tmp_path, cassandra.JARS)


def test_the_first_run_makes_an_archive_and_the_next_one_uses_it(tmp_path: Path) -> None:
    """What the first one leaves is taken over once, when it has ended in order."""
    folder = tmp_path / "kafka"
    folder.mkdir()
    archive = jars.archive(tmp_path / "cache", kafka.JARS, _JAVA, ["-Xmx1g"], folder)
    assert f"-XX:ArchiveClassesAtExit={folder}/classes.jsa" in archive.flags()
    archive.keep()
    assert not archive.kept.exists()
    archive.made.write_bytes(b"classes")
    archive.keep()
    assert archive.kept.read_bytes() == b"classes"
    assert not archive.made.exists()
    assert f"-XX:SharedArchiveFile={archive.kept}" in archive.flags()


def test_an_archive_fits_one_java_with_one_set_of_flags(tmp_path: Path) -> None:
    """Java would pass another one over in silence, and start slowly."""
    other = Java("/bin/java", 17, 'openjdk version "17.0.16"')
    kept = {
        jars.archive(tmp_path, kafka.JARS, java, flags, tmp_path).kept
        for java, flags in ((_JAVA, ["-Xmx1g"]), (_JAVA, ["-Xmx2g"]), (other, ["-Xmx1g"]))
    }
    assert len(kept) == 3


def test_what_compiles_yields_to_what_serves() -> None:
    """With the least of priorities; where starting quickly is all, it compiles little."""
    assert jars.compiling(quick=False) == ["-XX:ThreadPriorityPolicy=1", "-XX:CompilerThreadPriority=19"]
    assert jars.compiling(quick=True) == ["-XX:TieredStopAtLevel=1"]
