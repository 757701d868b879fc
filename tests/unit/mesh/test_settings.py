"""Settings: which source wins, and what is said when one is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field, SecretStr, ValidationError, model_validator

from mesh import settings
from mesh.errors import StartError
from mesh.settings import MASK, ServiceSettings, SettingsError, load


class ExampleSettings(ServiceSettings):
    service: ClassVar[str] = "example"

    store_url: str = Field(default="sqlite:///rows", description="where rows are kept")
    batch_limit: Annotated[int, Field(ge=1, le=500)] = Field(default=100, description="records a batch, 1 to 500")
    mode: Literal["fast", "safe"] = Field(default="safe", description="how to write")
    origins: tuple[str, ...] = Field(default=(), description="allowed origins")
    weights: dict[str, int] = Field(default={}, description="weight by name")
    api_key: SecretStr | None = Field(default=None, description="key of the provider")
    spare: bool = Field(default=True, description="keep a spare")

    @model_validator(mode="after")
    def _check(self) -> ExampleSettings:
        if self.mode == "fast" and self.batch_limit > 200:
            raise ValueError("batch_limit: more than 200 does not go with mode = fast; lower it or use safe")
        return self


class StrictSettings(ServiceSettings):
    service: ClassVar[str] = "strict"

    node: str = Field(description="which node this is")


def _load(*argv: str, **environ: str) -> ExampleSettings:
    return load(ExampleSettings, argv, {f"HELIOGRAPH_EXAMPLE_{name}": value for name, value in environ.items()})


def _refusal(*argv: str, **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        _load(*argv, **environ)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_defaults_need_nothing() -> None:
    """A service starts without any file, variable or flag, named after itself."""
    loaded = _load()
    assert (loaded.process, loaded.direct, loaded.batch_limit, loaded.tokens_file) == ("example", False, 100, None)


def test_each_source_beats_the_ones_before_it(tmp_path: Path) -> None:
    """A flag beats the environment, which beats the file, which beats the default."""
    file = tmp_path / "example.toml"
    file.write_text('batch_limit = 1\ndrain_limit = 1\nlog_level = "error"\n')
    loaded = _load("--config", str(file), "--batch-limit", "3", BATCH_LIMIT="2", DRAIN_LIMIT="2.5")
    assert loaded.batch_limit == 3
    assert loaded.drain_limit == 2.5
    assert loaded.log_level == "error"
    assert loaded.mode == "safe"
    assert loaded.config == file


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    """The variable of `config` names the file as the flag does."""
    file = tmp_path / "example.toml"
    file.write_text("batch_limit = 7\n")
    assert _load(CONFIG=str(file)).batch_limit == 7


@pytest.mark.parametrize(
    ("argv", "direct", "spare"),
    [
        (["--direct"], True, True),
        (["--no-spare"], False, False),
        (["--direct=false", "--spare=no"], False, False),
        (["--no-direct", "--direct"], True, True),
    ],
)
def test_switches_have_two_flags(argv: list[str], direct: bool, spare: bool) -> None:
    """A switch is turned on by its name and off by its name with "no"; the last one counts."""
    loaded = _load(*argv)
    assert (loaded.direct, loaded.spare) == (direct, spare)


def test_flags_take_their_value_either_way() -> None:
    """`--name VALUE` and `--name=VALUE` mean the same; the second form also takes values that begin with dashes."""
    assert _load("--store-url", "a").store_url == "a"
    assert _load("--store-url=--b=c").store_url == "--b=c"


def test_lists_and_tables_can_be_written_as_text() -> None:
    """A list is separated by commas or is JSON, a table is JSON."""
    assert _load("--origins", "https://a.example, https://b.example").origins == (
        "https://a.example",
        "https://b.example",
    )
    assert _load(ORIGINS='["x"]', WEIGHTS='{"a": 2}').origins == ("x",)
    assert _load(WEIGHTS='{"a": 2}').weights == {"a": 2}


def test_variables_of_other_services_are_not_read() -> None:
    """One environment serves all services: only this service's prefix counts."""
    environ = {"HELIOGRAPH_OTHER_BATCH_LIMIT": "x", "HELIOGRAPH_LOOP": "asyncio", "BATCH_LIMIT": "9", "DIRECT": "1"}
    loaded = load(ExampleSettings, [], environ)
    assert (loaded.batch_limit, loaded.direct) == (100, False)


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a given environment the process's own is used, and nothing without the prefix."""
    monkeypatch.setenv("HELIOGRAPH_EXAMPLE_BATCH_LIMIT", "12")
    monkeypatch.setenv("MODE", "fast")
    loaded = load(ExampleSettings, [])
    assert (loaded.batch_limit, loaded.mode) == (12, "safe")


@pytest.mark.parametrize(
    ("argv", "environ", "parts"),
    [
        ((), {"BATCH_LIMIT": "many"}, ["environment variable HELIOGRAPH_EXAMPLE_BATCH_LIMIT", "'many'", "1 to 500"]),
        ((), {"BATCH_LIMIT": "501"}, ["HELIOGRAPH_EXAMPLE_BATCH_LIMIT", "'501'", "1 to 500"]),
        ((), {"BATCH_LIMT": "5"}, ["HELIOGRAPH_EXAMPLE_BATCH_LIMT", "did you mean HELIOGRAPH_EXAMPLE_BATCH_LIMIT"]),
        ((), {"DIRECT": "perhaps"}, ["HELIOGRAPH_EXAMPLE_DIRECT", "'perhaps'"]),
        ((), {"API_KEY": ""}, ["HELIOGRAPH_EXAMPLE_API_KEY", "empty secret"]),
        ((), {"RUN_DIR": ""}, ["HELIOGRAPH_EXAMPLE_RUN_DIR", "is empty"]),
        ((), {"TOKENS_FILE": ""}, ["HELIOGRAPH_EXAMPLE_TOKENS_FILE", "is empty"]),
        ((), {"CONFIG": ""}, ["HELIOGRAPH_EXAMPLE_CONFIG", "is empty"]),
        ((), {"WEIGHTS": "{"}, ["HELIOGRAPH_EXAMPLE_WEIGHTS", "is not JSON"]),
        ((), {"DRAIN_LIMIT": "inf"}, ["HELIOGRAPH_EXAMPLE_DRAIN_LIMIT", "'inf'"]),
        (("--drain-limit", "0"), {}, ["flag --drain-limit", "above 0"]),
        (("--batch-limit", "x\ny"), {}, ["flag --batch-limit", "is wrong"]),
        (("--mode", "slow"), {}, ["flag --mode", "'slow'", "fast"]),
        (("--modes", "slow"), {}, ["flag --modes", "did you mean --mode"]),
        (("--zzz",), {}, ["flag --zzz", "--help"]),
        (("--batch_limit", "5"), {}, ["flag --batch_limit", "did you mean --batch-limit"]),
        (("--no-mode",), {}, ["flag --no-mode", "unknown"]),
        (("--no-direct=true",), {}, ["flag --no-direct", "unknown"]),
        (("--mode",), {}, ["flag --mode", "has no value"]),
        (("--mode", "--direct"), {}, ["flag --mode", "has no value"]),
        (("serve",), {}, ["'serve'", "--name VALUE"]),
        (("--process", "a/b"), {}, ["flag --process", "'a/b'"]),
        (("--metrics-port", "70000"), {}, ["flag --metrics-port", "65535"]),
        (("--mode", "fast", "--batch-limit", "300"), {}, ["flag --batch-limit", "does not go with mode = fast"]),
        (("--run-dir", "/" + "x" * 100), {}, ["flag --run-dir", "107 bytes", "shorter"]),
    ],
)
def test_one_line_says_what_is_wrong_and_where(
    argv: tuple[str, ...], environ: dict[str, str], parts: list[str]
) -> None:
    """The variable or flag is named, with what is wrong and what to do, in one line."""
    text = _refusal(*argv, **environ)
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ('batch_limit = "many"', ["key batch_limit", "'many'", "1 to 500"]),
        ("bath_limit = 3", ["key bath_limit", "did you mean batch_limit"]),
        ('config = "other.toml"', ["key config", "unknown"]),
        ("batch_limit = ", ["is not TOML"]),
        ('api_key = ""', ["key api_key", "empty secret"]),
        ("[batch_limit]\na = 1", ["key batch_limit", "is wrong"]),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path: Path, content: str, parts: list[str]) -> None:
    """A broken line in a file is found by the text of the error alone."""
    file = tmp_path / "bad.toml"
    file.write_text(content)
    text = _refusal("--config", str(file))
    for part in [str(file), *parts]:
        assert part in text


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there, or is a folder, stops the start with its name."""
    assert f"config file {tmp_path}/no.toml: No such file" in _refusal("--config", f"{tmp_path}/no.toml")
    assert f"config file {tmp_path}: Is a directory" in _refusal("--config", str(tmp_path))


def test_a_required_setting_that_is_missing_is_named_by_its_variable() -> None:
    """Without the value the text says which variable, flag or key to set, and shows no other value."""
    with pytest.raises(SettingsError) as caught:
        load(StrictSettings, ["--trust-domain", "other.domain"], {})
    text = str(caught.value)
    assert text.startswith("HELIOGRAPH_STRICT_NODE: is not set")
    assert "--node" in text
    assert "other.domain" not in text


def test_secrets_never_show() -> None:
    """Neither an error nor the printed settings contain a secret or a password in a URL."""
    loaded = _load(API_KEY="hunter2", STORE_URL="redis://me:hunter2@host/0")
    shown = settings.render(loaded)
    assert "hunter2" not in shown
    assert "hunter2" not in repr(loaded.api_key)
    assert f'api_key = "{MASK}"' in shown
    assert f"redis://me:{MASK}@host/0" in shown
    assert "hunter2" not in _refusal("--mode", "redis://me:hunter2@host")


def test_printed_settings_are_a_config_file(tmp_path: Path) -> None:
    """What is printed can be given back as a file and means the same."""
    loaded = _load("--origins", 'a"b,ü😀', "--no-spare", "--weights", '{"x y": 1}', "--store-url", "back\\slash\x7f")
    content = settings.render(loaded)
    assert tomllib.loads(content)["origins"] == ['a"b', "ü😀"]
    file = tmp_path / "printed.toml"
    file.write_text(content)
    again = _load("--config", str(file))
    assert again.model_dump(exclude={"config"}) == loaded.model_dump(exclude={"config"})


def test_settings_do_not_change() -> None:
    """Nobody changes a setting after the start."""
    loaded = _load()
    with pytest.raises(ValidationError):
        loaded.batch_limit = 5


def test_every_field_is_documented() -> None:
    """The documentation has a row for each field with its variable, flag, kind and default."""
    rows = {row.name: row for row in settings.document(ExampleSettings)}
    assert set(rows) == set(ExampleSettings.model_fields)
    assert all(row.description for row in rows.values())
    limit = rows["batch_limit"]
    assert (limit.variable, limit.flag) == ("HELIOGRAPH_EXAMPLE_BATCH_LIMIT", "--batch-limit")
    assert (limit.kind, limit.default) == ("whole number", "100")
    assert rows["direct"].flag == "--direct / --no-direct"
    assert rows["mode"].kind == "one of fast, safe"
    assert (rows["api_key"].kind, rows["api_key"].default) == ("secret", "not set")
    assert rows["process"].default == "example"
    assert settings.document(StrictSettings)[-1].default == "required"


@pytest.mark.parametrize(("value", "wanted"), [(None, True), ("", True), ("uvloop", True), ("asyncio", False)])
def test_the_loop_is_chosen_by_its_variable(value: str | None, wanted: bool) -> None:
    """The faster loop is used unless the variable turns it off."""
    assert settings.uvloop_wanted({} if value is None else {"HELIOGRAPH_LOOP": value}) is wanted


def test_an_unknown_loop_stops_the_start() -> None:
    """A misspelled loop name is not silently the default."""
    with pytest.raises(StartError, match="HELIOGRAPH_LOOP"):
        settings.uvloop_wanted({"HELIOGRAPH_LOOP": "trio"})
