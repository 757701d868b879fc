"""Kafka and Cassandra as jars: fetched with Maven once, their class-data archives for quick starts, how they compile.

All of it is in the cache folder, which every checkout shares; a lock lets one at a time fetch. It must not know how a
server is configured.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from deploy.engines.failures import EnginesFailed
from deploy.engines.machine import Java

# Pinned: what a system's Maven takes of itself may be years old.
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_COMPLETE: Final = ".complete"
# How little a compiling thread matters beside those that serve, as with nice(1).
_COMPILING_NICE: Final = 19


class Jar(msgspec.Struct, frozen=True):
    """A dependency: its coordinates, and "group:artifact" of what it brings and is not needed."""

    group: str
    artifact: str
    version: str
    without: tuple[str, ...] = ()


class Jars(msgspec.Struct, frozen=True):
    """An engine's jars.

    Attributes:
        name: of their folder in the cache, with the version.
        wanted: what is asked for; Maven adds what that needs.
        witness: the file without which it is not there.
    """

    name: str
    wanted: tuple[Jar, ...]
    witness: str


def pom(jars: Jars) -> str:
    """Returns the project file from which Maven resolves an engine."""
    dependencies = "".join(_dependency(jar) for jar in jars.wanted)
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        f"<groupId>local</groupId><artifactId>{jars.name}</artifactId><version>1</version>\n"
        f"<dependencies>\n{dependencies}</dependencies></project>\n"
    )


def _dependency(jar: Jar) -> str:
    exclusions = "".join(
        "<exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>".format(*one.split(":"))
        for one in jar.without
    )
    return (
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version>"
        + (f"<exclusions>{exclusions}</exclusions>" if exclusions else "")
        + "</dependency>\n"
    )


def library(cache: Path, jars: Jars) -> Path:
    """Returns the folder of an engine's jars."""
    return cache / jars.name / "libs"


def is_fetched(cache: Path, jars: Jars) -> bool:
    """Tells whether all jars of an engine are there."""
    return (cache / jars.name / _COMPLETE).exists() and (library(cache, jars) / jars.witness).exists()


def fetch(cache: Path, jars: Jars, maven: str) -> bool:
    """Fetches an engine's jars when they are not there; False when they are.

    Raises:
        EnginesFailed: Maven could not; its own last line of weight is with it.
    """
    if is_fetched(cache, jars):
        return False
    with _alone(cache):
        if is_fetched(cache, jars):
            return False
        home = cache / jars.name
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        (home / "pom.xml").write_text(pom(jars), encoding="utf-8")
        command = [maven, "-q", "-B", "-f", str(home / "pom.xml"), f"{_PLUGIN}:copy-dependencies"]
        command += [f"-DoutputDirectory={library(cache, jars)}", "-DincludeScope=runtime"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode or not (library(cache, jars) / jars.witness).exists():
            lines = [line for line in done.stdout.splitlines() if "ERROR" in line] or [f"exit code {done.returncode}"]
            raise EnginesFailed(f"{jars.name}: Maven could not fetch it: {lines[0].strip()}")
        (home / _COMPLETE).touch()
        return True


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---------------------------------------------------------------- class-data archives


class Archive(msgspec.Struct, frozen=True):
    """The classes of a server as its first run loaded them, mapped by every later one.

    Attributes:
        kept: where it is kept; it fits one Java, one set of jars and one set of flags.
        made: where a run without it writes one when it ends in order.
    """

    kept: Path
    made: Path

    def flags(self) -> list[str]:
        """Returns the flags of Java that use it, or make it when there is none."""
        # Else the agent that measures objects in Cassandra keeps the archive from being written.
        agent = ["-XX:+UnlockDiagnosticVMOptions", "-XX:+AllowArchivingWithJavaAgent"]
        if self.kept.exists():
            return [*agent, f"-XX:SharedArchiveFile={self.kept}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
        return [*agent, f"-XX:ArchiveClassesAtExit={self.made}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]

    def keep(self) -> None:
        """Takes over what a run has made."""
        if not self.made.exists() or self.kept.exists():
            return
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        # The cache may be on another file system: copied aside, then put in place at once.
        aside = self.kept.with_name(f"{self.kept.name}.{os.getpid()}.{self.made.parent.name}")
        shutil.move(self.made, aside)
        os.replace(aside, self.kept)


def archive(cache: Path, jars: Jars, java: Java, flags: Sequence[str], folder: Path) -> Archive:
    """Names the archive for a Java with these flags; a run in the folder may make it."""
    said = "\n".join((java.text, *flags)).encode()
    name = f"classes-{hashlib.sha256(said).hexdigest()[:16]}.jsa"
    return Archive(kept=cache / jars.name / name, made=folder / "classes.jsa")


def compiling(*, quick: bool) -> list[str]:
    """Returns the flags that say how Java compiles what it runs.

    Args:
        quick: less, and sooner. Else all it can, which for minutes takes what is left of few cores, but only that
            (ADR 0068).
    """
    return (
        ["-XX:TieredStopAtLevel=1"]
        if quick
        else ["-XX:ThreadPriorityPolicy=1", f"-XX:CompilerThreadPriority={_COMPILING_NICE}"]
    )
