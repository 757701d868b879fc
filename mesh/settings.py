"""Settings of a process: defaults, then a TOML file, then environment variables, then flags.

The only place that reads the environment, and the only importer of pydantic-settings. Whatever is wrong ends in one
line that names the variable, the flag or the file and key, what is wrong, and what to do. Must not log or print.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import msgspec
from pydantic import Field, SecretStr, StringConstraints, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from mesh.errors import StartError

LOOP_VARIABLE = "HELIOGRAPH_LOOP"
MASK = "********"

# The address of a Unix socket has 108 bytes, the closing zero included.
_LONGEST_SOCKET_PATH = 107
_PASSWORD = re.compile(r"(://[^/@:\s]*:)[^@/\s]+@")
_MODEL_ERROR = re.compile(r"(?:Value error|Assertion failed), ")
_SEQUENCES = (list, tuple, set, frozenset)

Seconds = Annotated[float, Field(ge=0.0, le=3600.0)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class SettingsError(StartError):
    """One line: the variable, flag or file and key; what is wrong with it; what to do."""


class ServiceSettings(BaseSettings):
    """What every service can be told. A service adds its own fields and sets `service`.

    Each field has a description with its unit and range: it is the documentation. A validator of a whole model
    begins its text with the name of the field it complains about and a colon; the reader then sees where that field
    was set.
    """

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )

    service: ClassVar[str]

    config: Path | None = Field(default=None, description="TOML file with settings, keys named like these fields")
    process: Name = Field(
        default="", description="name of this process in sockets, logs and links; default: the service"
    )
    run_dir: Path = Field(default=Path(".heliograph/run"), description="short folder for Unix sockets")
    data_dir: Path = Field(default=Path(".heliograph/data"), description="folder for embedded stores")
    direct: bool = Field(
        default=False, description="talk to peers without sidecars; callers are believed by their header"
    )
    trust_domain: Annotated[str, StringConstraints(pattern=r"^[a-z0-9._-]{1,255}$")] = Field(
        default="heliograph.local", description="trust domain of SPIFFE identities"
    )
    tokens_file: Path | None = Field(
        default=None, description="JWKS file with the public keys that tokens are checked by"
    )
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=0, description="loopback port of /metrics; 0 is off"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="lowest level that is logged"
    )
    trace_log: bool = Field(default=False, description="log every step of every event: for demonstrations and tests")
    drain_delay: Seconds = Field(
        default=0.0, description="seconds between becoming unready and draining, 0 to 3600: time for callers to notice"
    )
    drain_limit: Annotated[float, Field(gt=0.0, le=3600.0)] = Field(
        default=10.0, description="seconds each step of draining and stopping may take, above 0 to 3600"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Leaves the arguments as the only source: `load` merges the others and remembers where each value is from."""
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _name_process(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "process": values.get("process") or cls.service}

    @model_validator(mode="after")
    def _check_common(self) -> Self:
        for name, value in self:
            if isinstance(value, SecretStr) and not value.get_secret_value():
                raise ValueError(f"{name}: is an empty secret; set it or leave it out")
        longest = self.run_dir / f"{self.process}.admin"
        if len(os.fsencode(longest)) > _LONGEST_SOCKET_PATH:
            raise ValueError(f"run_dir: socket paths in it exceed {_LONGEST_SOCKET_PATH} bytes; use a shorter folder")
        return self


S = TypeVar("S", bound=ServiceSettings)


class FieldDoc(msgspec.Struct, frozen=True):
    """One setting as the documentation shows it."""

    name: str
    variable: str
    flag: str
    kind: str
    default: str
    description: str


class _Given(msgspec.Struct, frozen=True):
    """A value with the place it was given at."""

    value: Any
    origin: str


def load(model: type[S], argv: Sequence[str], environ: Mapping[str, str] | None = None) -> S:
    """Returns the settings of a process.

    Args:
        model: the service's settings.
        argv: flags, the program's name not included.
        environ: environment variables; the process's own when left out.

    Raises:
        SettingsError: one line that says what is wrong, where, and what to do.
    """
    flags = _read_flags(model, argv)
    variables = _read_variables(model, os.environ if environ is None else environ)
    given: dict[str, _Given] = {}
    config = flags.get("config") or variables.get("config")
    if config is not None:
        if not config.value:
            raise SettingsError(f"{config.origin}: is empty; name a TOML file")
        given.update(_read_file(model, Path(config.value)))
    given.update(variables)
    given.update(flags)
    _refuse_empty_paths(model, given)
    try:
        return model(**{name: item.value for name, item in given.items()})
    except ValidationError as error:
        raise _explain(model, error, given) from None


def document(model: type[ServiceSettings]) -> list[FieldDoc]:
    """Returns all settings of a service for its documentation, the common ones first."""
    return [
        FieldDoc(
            name=name,
            variable=_variable(model, name),
            flag=_flag(name) + (f" / --no-{_dashed(name)}" if _is_switch(field) else ""),
            kind=_kind(field.annotation),
            default=_default(model, name, field),
            description=field.description or "",
        )
        for name, field in model.model_fields.items()
    ]


def render(settings: ServiceSettings) -> str:
    """Returns effective settings as a TOML file, secrets masked."""
    lines = []
    for name, value in settings:
        shown = _toml(value)
        lines.append(f"# {name} is not set" if shown is None else f"{name} = {shown}")
    return "\n".join(lines) + "\n"


def uvloop_wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Says whether a faster event loop is to be used where it is installed; the variable can turn it off.

    Raises:
        SettingsError: the variable has another value than "uvloop", "asyncio" or nothing.
    """
    value = (os.environ if environ is None else environ).get(LOOP_VARIABLE, "")
    if value not in ("", "uvloop", "asyncio"):
        raise SettingsError(f'{LOOP_VARIABLE}: {value!r} is no event loop; use "uvloop" or "asyncio"')
    return value != "asyncio"


# ---------------------------------------------------------------- sources


def _read_flags(model: type[ServiceSettings], argv: Sequence[str]) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    words = iter(argv)
    for word in words:
        if not word.startswith("--"):
            raise SettingsError(f"{word!r}: is no flag; settings are given as --name VALUE")
        flag, equals, text = word.partition("=")
        name, switch = flag[2:].replace("-", "_"), None
        if name not in model.model_fields and name.startswith("no_"):
            name, switch = name.removeprefix("no_"), "false"
        field = model.model_fields.get(name)
        # A flag is spelled with dashes only: one spelling per setting.
        if field is None or "_" in flag or (switch and (equals or not _is_switch(field))):
            raise SettingsError(_unknown(f"flag {flag}", flag, [_flag(known) for known in model.model_fields]))
        if _is_switch(field) and not equals:
            text = switch or "true"
        elif not equals:
            text = _next_word(flag, words)
        given[name] = _Given(_from_text(field, text, f"flag {flag}"), f"flag {flag}")
    return given


def _next_word(flag: str, words: Iterator[str]) -> str:
    text = next(words, None)
    if text is None or text.startswith("--"):
        raise SettingsError(f"flag {flag}: has no value; write {flag} VALUE, or {flag}=VALUE if it begins with --")
    return text


def _read_variables(model: type[ServiceSettings], environ: Mapping[str, str]) -> dict[str, _Given]:
    names = {_variable(model, name): name for name in model.model_fields}
    given: dict[str, _Given] = {}
    for variable in sorted(environ):
        if variable.startswith(_variable(model, "")):
            if variable not in names:
                raise SettingsError(_unknown(f"environment variable {variable}", variable, list(names)))
            name = names[variable]
            origin = f"environment variable {variable}"
            given[name] = _Given(_from_text(model.model_fields[name], environ[variable], origin), origin)
    return given


def _read_file(model: type[ServiceSettings], path: Path) -> dict[str, _Given]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"config file {path}: {error.strerror}; name a readable TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config file {path}: is not TOML: {_one_line(error)}; correct it") from None
    known = [name for name in model.model_fields if name != "config"]
    for key in content:
        if key not in known:
            raise SettingsError(_unknown(f"config file {path}, key {key}", key, known))
    return {key: _Given(value, f"config file {path}, key {key}") for key, value in content.items()}


def _from_text(field: FieldInfo, text: str, origin: str) -> Any:
    """Reads what a flag or variable says: sequences as JSON or separated by commas, mappings as JSON."""
    kinds = [typing.get_origin(kind) or kind for kind in _alternatives(field.annotation)]
    is_sequence = any(kind in _SEQUENCES for kind in kinds)
    if (is_sequence and text.lstrip().startswith("[")) or dict in kinds:
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise SettingsError(f"{origin}: is not JSON: {_one_line(error)}; correct it") from None
    if is_sequence:
        return [item.strip() for item in text.split(",") if item.strip()]
    return text


# ---------------------------------------------------------------- what is wrong


def _explain(model: type[ServiceSettings], error: ValidationError, given: Mapping[str, _Given]) -> SettingsError:
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    what = _MODEL_ERROR.sub("", first["msg"], count=1)
    name = str(first["loc"][0]) if first["loc"] else ""
    if not name and (named := what.partition(":")[0]) in model.model_fields:
        name, what = named, what.partition(":")[2].strip()
    elif first["type"] == "missing":
        what = f"is not set; set it, or give {_flag(name)}, or {name} in a config file"
    elif name in model.model_fields:
        what = f"{_quote(model.model_fields[name], first['input'])} is wrong: {what}"
        what += f"; give: {model.model_fields[name].description}"
    origin = given[name].origin if name in given else _variable(model, name) if name else f"{model.service} settings"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return SettingsError(_one_line(f"{origin}: {what}{more}"))


def _refuse_empty_paths(model: type[ServiceSettings], given: Mapping[str, _Given]) -> None:
    """An empty path would mean the working folder, which nobody who writes nothing has in mind."""
    for name, item in given.items():
        if item.value == "" and Path in _alternatives(model.model_fields[name].annotation):
            raise SettingsError(f"{item.origin}: is empty; give a path or leave it out")


def _unknown(where: str, word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "see --help for the known ones"
    return f"{where}: is unknown; {hint}"


def _quote(field: FieldInfo, value: object) -> str:
    if SecretStr in _alternatives(field.annotation):
        return "the secret"
    return _PASSWORD.sub(rf"\g<1>{MASK}@", repr(value))


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


# ---------------------------------------------------------------- names and texts


def _variable(model: type[ServiceSettings], name: str) -> str:
    return f"HELIOGRAPH_{model.service}_{name}".upper().replace("-", "_")


def _flag(name: str) -> str:
    return f"--{_dashed(name)}"


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or the annotation alone, without their constraints."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return tuple(kind for member in typing.get_args(annotation) for kind in _alternatives(member))
    return (annotation,)


def _is_switch(field: FieldInfo) -> bool:
    return field.annotation is bool


def _kind(annotation: Any) -> str:
    names = {bool: "switch", int: "whole number", float: "number", str: "text", Path: "path", SecretStr: "secret"}
    shown = []
    for kind in _alternatives(annotation):
        if typing.get_origin(kind) is Literal:
            shown.append("one of " + ", ".join(str(choice) for choice in typing.get_args(kind)))
        elif typing.get_origin(kind) in _SEQUENCES:
            shown.append("list")
        elif typing.get_origin(kind) is dict:
            shown.append("table")
        elif kind is not types.NoneType:
            shown.append(names.get(kind, getattr(kind, "__name__", str(kind))))
    return " or ".join(shown)


def _default(model: type[ServiceSettings], name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if name == "process":
        return model.service
    return _toml(field.get_default(call_default_factory=True)) or "not set"


def _toml(value: object) -> str | None:
    """Returns a value as TOML; None when it has none."""
    match value:
        case None:
            return None
        case bool() | int() | float():
            return json.dumps(value)
        case SecretStr():
            return _toml_text(MASK)
        case list() | tuple() | set() | frozenset():
            return "[" + ", ".join(_toml(item) or '""' for item in value) + "]"
        case dict():
            return "{ " + ", ".join(f"{_toml_text(str(key))} = {_toml(item)}" for key, item in value.items()) + " }"
        case _:
            return _toml_text(_PASSWORD.sub(rf"\g<1>{MASK}@", str(value)))


def _toml_text(text: str) -> str:
    # JSON's escapes are TOML's too, but for the delete character and for what JSON writes as surrogate pairs.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
