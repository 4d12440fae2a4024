import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from legation import settings
from legation.errors import ConfigInvalid
from legation.settings import FIELDS, Settings, load
from tools import pages

PAGE = Path(__file__).parents[1] / "docs/reference/settings.md"
ENV = {"HOME": "/home/ada"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".config/legation").mkdir(parents=True)
    return tmp_path


def write(home: Path, text: str) -> Path:
    path = home / ".config/legation/legation.toml"
    path.write_text(text)
    return path


def problems(flags: Mapping[str, object], environ: Mapping[str, str]) -> list[str]:
    with pytest.raises(ConfigInvalid, match=r"^cannot use the settings") as refused:
        load(flags, environ)
    assert refused.value.data is not None
    listed = refused.value.data["problems"]
    assert isinstance(listed, list)
    assert refused.value.message.splitlines()[1:] == [f"- {problem}" for problem in listed]
    return listed


def test_the_defaults_are_those_the_page_promises(home: Path) -> None:
    found = load({}, {"HOME": str(home)})
    assert found.data_dir == home / ".local/share/legation"
    assert (found.stop_grace, found.start_timeout) == (5.0, 60.0)
    assert (found.idle_timeout, found.permission_timeout) == (600.0, 600.0)
    assert (found.max_line_bytes, found.log_level) == (32 * 1024 * 1024, "warning")
    assert {found.source(field.name) for field in FIELDS} == {"default"}


def test_flags_win_over_environment_over_file_over_default(home: Path) -> None:
    path = write(home, 'stop_grace = 1\nstart_timeout = 2\nidle_timeout = "3m"\n')
    environ = {"HOME": str(home), "LEGATION_STOP_GRACE": "4", "LEGATION_START_TIMEOUT": "5s"}
    found = load({"stop_grace": 6.0, "log_level": None}, environ)
    assert (found.stop_grace, found.start_timeout, found.idle_timeout) == (6.0, 5.0, 180.0)
    assert found.source("stop_grace") == "flag --stop-grace"
    assert found.source("start_timeout") == "env LEGATION_START_TIMEOUT"
    assert found.source("idle_timeout") == f"{path}: idle_timeout"
    assert found.source("log_level") == "default"


def test_settings_cannot_be_changed(home: Path) -> None:
    found = load({}, {"HOME": str(home)})
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.stop_grace = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h", 3600),
        ("500ms", 0.5),
        (" 1.5 m ", 90),
        ("7", 7),
        (7, 7),
        (0.25, 0.25),
        ("2D", 172800),
    ],
)
def test_a_duration_is_a_number_or_a_text_with_a_unit(text: object, seconds: float) -> None:
    found = load({"idle_timeout": text, "data_dir": "/data"}, {}).idle_timeout
    assert (found, type(found)) == (seconds, float)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("64KiB", 65536),
        ("32MiB", 33554432),
        ("512MiB", 2**29),
        ("1mb", 10**6),
        ("65536", 65536),
        (70000, 70000),
    ],
)
def test_a_size_is_a_number_or_a_text_with_a_unit(text: object, count: int) -> None:
    found = load({"max_line_bytes": text, "data_dir": "/data"}, {}).max_line_bytes
    assert (found, type(found)) == (count, int)


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("public_url", "http://[::1", "is not understood: write an address"),
        ("public_url", "http://a:b", "is not understood"),
        ("public_url", "http://:80", "is not understood"),
        ("stop_grace", "soon", "is not understood: write seconds"),
        ("stop_grace", "", "is not understood"),
        ("stop_grace", "5 MiB", "is not understood"),
        ("stop_grace", "-1", "is not understood"),
        ("stop_grace", -1, "is out of range"),
        ("stop_grace", True, "is not understood"),
        ("stop_grace", [5], "is not understood"),
        ("stop_grace", float("nan"), "is out of range"),
        ("stop_grace", float("inf"), "is out of range"),
        ("stop_grace", 10**400, "is out of range"),
        ("stop_grace", "301s", "is out of range: write seconds"),
        ("start_timeout", 0, "is out of range"),
        ("max_line_bytes", "2GiB", "is out of range: write bytes"),
        ("max_line_bytes", "10s", "is not understood: write bytes"),
        ("log_level", "loud", "is not understood: write one of debug, info, warning"),
        ("log_level", 3, "is not understood"),
        ("data_dir", "relative/folder", "is not understood: write an absolute path"),
        ("data_dir", "", "is not understood"),
        ("data_dir", 5, "is not understood"),
    ],
)
def test_an_unusable_value_is_refused_with_its_place(
    name: str, value: object, fault: str, home: Path
) -> None:
    (problem,) = problems({name: value}, {"HOME": str(home)})
    assert problem.startswith(f"flag {settings.flag(name)} {fault}")


def test_everything_wrong_is_listed_at_once_with_its_place(home: Path) -> None:
    path = write(home, 'stop_grce = 1\nidle_timeout = "often"\n[server]\nport = 1\n')
    environ = {"HOME": str(home), "LEGATION_LOG_LEVL": "debug", "LEGATION_MAX_LINE_BYTES": "1"}
    listed = problems({"start_timeout": "never", "stop_gracee": 1}, environ)
    assert [problem.partition(" is ")[0] for problem in listed] == [
        "flag --start-timeout",
        "flag --stop-gracee",
        "env LEGATION_LOG_LEVL",
        "env LEGATION_MAX_LINE_BYTES",
        f"{path}: stop_grce",
        f"{path}: idle_timeout",
        f"{path}: server",
    ]
    assert listed[1].endswith("is unknown: did you mean --stop-grace?")
    assert listed[2].endswith("is unknown: did you mean LEGATION_LOG_LEVEL?")
    assert listed[4].endswith("is unknown: did you mean stop_grace?")
    assert listed[6].endswith("is unknown: known are " + ", ".join(field.name for field in FIELDS))


def test_a_bad_value_is_refused_even_where_a_flag_overrules_it(home: Path) -> None:
    environ = {"HOME": str(home), "LEGATION_STOP_GRACE": "soon"}
    assert problems({"stop_grace": 1}, environ)[0].startswith("env LEGATION_STOP_GRACE is not understood")


def test_values_are_not_repeated_in_the_error(home: Path) -> None:
    assert "hunter22" not in problems({}, {"HOME": str(home), "LEGATION_STOP_GRACE": "hunter22"})[0]


def test_the_current_folder_is_never_searched(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    for folder in (repository, repository / "legation", repository / ".config/legation"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "legation.toml").write_text("stop_grace = 1")
    monkeypatch.chdir(repository)
    for environ in ({"HOME": str(home)}, {}, {"HOME": "", "XDG_CONFIG_HOME": "."}, {"HOME": "."}):
        assert load({"data_dir": "/data"}, environ).stop_grace == 5.0
    assert problems({"data_dir": "/data"}, {"LEGATION_CONFIG": "legation.toml"}) == [
        "env LEGATION_CONFIG is relative: write an absolute path"
    ]


def test_the_xdg_folders_are_used_when_absolute_and_ignored_when_not(home: Path, tmp_path: Path) -> None:
    config = tmp_path / "config/legation"
    config.mkdir(parents=True)
    (config / "legation.toml").write_text("stop_grace = 2")
    xdg = {"XDG_CONFIG_HOME": str(config.parent), "XDG_DATA_HOME": str(tmp_path / "data")}
    found = load({}, {"HOME": str(home), **xdg})
    assert (found.stop_grace, found.data_dir) == (2.0, tmp_path / "data/legation")
    found = load({}, {"HOME": str(home), "XDG_DATA_HOME": "data", "XDG_CONFIG_HOME": ""})
    assert (found.stop_grace, found.data_dir) == (5.0, home / ".local/share/legation")


def test_the_named_file_is_read_instead_of_the_usual_one(home: Path) -> None:
    write(home, "stop_grace = 1")
    (home / "mine.toml").write_text("start_timeout = 2")
    found = load({}, {"HOME": str(home), "LEGATION_CONFIG": "~/mine.toml"})
    assert (found.stop_grace, found.start_timeout) == (5.0, 2.0)


def test_the_named_file_must_exist(home: Path) -> None:
    missing = home / "missing.toml"
    assert problems({}, {"HOME": str(home), "LEGATION_CONFIG": str(missing)}) == [
        f"{missing} does not exist: create it or correct LEGATION_CONFIG"
    ]


def test_a_syntax_error_is_told_with_its_line(home: Path) -> None:
    path = write(home, "stop_grace = 1\nidle_timeout 3\n")
    (problem,) = problems({}, {"HOME": str(home)})
    assert problem.startswith(f"{path} is not TOML (")
    assert "line 2" in problem


def test_an_unreadable_file_is_refused_not_skipped(home: Path) -> None:
    path = write(home, "")
    path.write_bytes(b"\xff")
    assert problems({}, {"HOME": str(home)}) == [f"{path} is not UTF-8: save it as such"]
    path.unlink()
    path.mkdir()
    assert problems({}, {"HOME": str(home)}) == [
        f"{path} cannot be read (Is a directory): correct or remove it"
    ]


def test_without_home_a_data_folder_must_be_named() -> None:
    assert problems({}, {}) == ["data_dir has no default without HOME: set HOME or LEGATION_DATA_DIR"]
    assert load({}, {"LEGATION_DATA_DIR": "/data"}).data_dir == Path("/data")
    assert "is not understood" in problems({}, {"LEGATION_DATA_DIR": "~/data"})[0]


def test_a_path_given_as_a_flag_may_be_relative(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    assert load({"data_dir": Path("here")}, {}).data_dir == home / "here"
    assert load({"data_dir": Path("~/there")}, {"HOME": "/owner"}).data_dir == Path("/owner/there")


def test_every_folder_of_a_list_may_begin_at_home(home: Path) -> None:
    wanted = (home / "code", Path("/srv"), home / "notes")
    write(home, 'folders = ["~/code", "/srv", "~/notes"]')
    environ = {"HOME": str(home)}
    assert load({}, environ).folders == wanted
    assert load({}, {**environ, "LEGATION_FOLDERS": "~/code:/srv::~/notes"}).folders == wanted


def test_variables_of_others_are_ignored(home: Path) -> None:
    assert load({}, {"HOME": str(home), "STOP_GRACE": "1", "XLEGATION_FOO": "1"}).stop_grace == 5.0


def test_the_table_describes_every_field_of_settings() -> None:
    names = [field.name for field in dataclasses.fields(Settings)]
    assert [field.name for field in FIELDS] == names[: names.index("sources")]
    assert all(field.description.endswith(".") for field in FIELDS)


def test_a_default_is_the_same_as_it_is_written_and_as_it_is_used() -> None:
    used = {field.name: field.default for field in dataclasses.fields(Settings)}
    written = {field.name: field.read(field.default) for field in FIELDS if field.name != "data_dir"}
    assert written == {name: used[name] for name in written}
    assert {name: type(value) for name, value in written.items()} == {
        name: type(used[name]) for name in written
    }


def test_the_reference_page_is_current() -> None:
    assert PAGE.read_text() == pages.settings(), (
        "docs/reference/settings.md is out of date: run `./dev check --fix`"
    )
    assert all(f"`{field.name}`" in pages.settings() for field in FIELDS)


def test_server_settings_have_safe_defaults() -> None:
    settings = load({}, ENV)
    assert (settings.host, settings.port, settings.token, settings.database_url) == (
        "127.0.0.1",
        4517,
        None,
        None,
    )
    assert (settings.cors_origins, settings.allowed_hosts, settings.public_url) == ((), (), None)


def test_a_secret_setting_hides_itself() -> None:
    settings = load({}, {**ENV, "LEGATION_DATABASE_URL": "postgresql://u:canary-1@db/legation"})
    assert settings.database_url is not None
    assert settings.database_url.reveal() == "postgresql://u:canary-1@db/legation"
    assert "canary" not in repr(settings)


def test_a_wrong_secret_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load({}, {**ENV, "LEGATION_DATABASE_URL": "mysql://u:canary-1@db/x", "LEGATION_PORT": "70000"})
    assert "LEGATION_DATABASE_URL" in caught.value.message
    assert "LEGATION_PORT" in caught.value.message
    assert "canary" not in caught.value.message


def test_lists_are_written_with_commas() -> None:
    settings = load({}, {**ENV, "LEGATION_CORS_ORIGINS": "https://a.example, http://localhost:3000"})
    assert settings.cors_origins == ("https://a.example", "http://localhost:3000")


def test_the_variable_of_the_sdk_is_not_a_setting() -> None:
    load({}, {**ENV, "LEGATION_BIN": "legation"})
