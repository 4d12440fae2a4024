"""The places that settings come from: flags, then LEGATION_* variables, then legation.toml, then the defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from legation.errors import ConfigInvalid
from legation.settings.fields import FIELDS, PREFIX, Settings, Unusable, flag, read_folders, variable

CONFIG_VARIABLE: Final = "LEGATION_CONFIG"  # names the file, so that it cannot be a setting in it
BIN_VARIABLE: Final = "LEGATION_BIN"  # names the program that the SDK starts: not ours to read
_BY_NAME: Final = {field.name: field for field in FIELDS}


class _Layer(NamedTuple):
    values: Mapping[str, object]  # by field name
    where: str
    spell: Callable[[str], str]  # a field's name as it is written there


def load(flags: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """`flags` go by field name; None counts as not given, a relative `Path` starts at the current folder."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    problems: list[str] = []
    for layer in (_flags(flags), _variables(environ), _file(environ, problems)):
        for name, raw in layer.values.items():
            place = f"{layer.where} {layer.spell(name)}"
            try:
                if (field := _BY_NAME.get(name)) is None:
                    raise _unknown(name, layer.spell)
                if field.read is read_folders and isinstance(raw, str):
                    raw = raw.split(":")  # a list in the file; elsewhere a text, as PATH is
                value = field.read(_from_home(raw, environ))
            except Unusable as fault:
                problems.append(f"{place} {fault}")
            else:
                values.setdefault(name, value)
                sources.setdefault(name, place)
    if "data_dir" not in values and (folder := default_data_folder(environ)).is_absolute():
        values["data_dir"] = folder
    if not problems and "data_dir" not in values:
        problems.append("data_dir has no default without HOME: set HOME or LEGATION_DATA_DIR")
    if problems:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ConfigInvalid(f"cannot use the settings; correct this:{lines}", {"problems": problems})
    return Settings(**values, sources=MappingProxyType(sources))


def _flags(flags: Mapping[str, object]) -> _Layer:
    given = {name: value for name, value in flags.items() if value is not None}
    for name, value in given.items():
        if isinstance(value, Path) and value.parts[:1] != ("~",):
            given[name] = value.absolute()
    return _Layer(given, "flag", flag)


def _variables(environ: Mapping[str, str]) -> _Layer:
    others = (CONFIG_VARIABLE, BIN_VARIABLE)
    ours = sorted(name for name in environ if name.startswith(PREFIX) and name not in others)
    return _Layer({name.removeprefix(PREFIX).lower(): environ[name] for name in ours}, "env", variable)


def config_file(environ: Mapping[str, str]) -> Path:
    """The one that is read, whether it is there or not; relative where it is not looked for."""
    if chosen := environ.get(CONFIG_VARIABLE):
        return Path(str(_from_home(chosen, environ)))
    return _xdg_folder(environ, "XDG_CONFIG_HOME", ".config") / "legation.toml"


def _file(environ: Mapping[str, str], problems: list[str]) -> _Layer:
    path, chosen = config_file(environ), environ.get(CONFIG_VARIABLE)
    values: Mapping[str, object] = {}
    if path.is_absolute():
        try:
            values = _parsed(path.read_text("utf-8"))
        except FileNotFoundError:
            if chosen:
                problems.append(f"{path} does not exist: create it or correct {CONFIG_VARIABLE}")
        except OSError as error:
            problems.append(f"{path} cannot be read ({error.strerror}): correct or remove it")
        except UnicodeDecodeError:
            problems.append(f"{path} is not UTF-8: save it as such")
        except Unusable as fault:
            problems.append(f"{path} {fault}")
    elif chosen:
        problems.append(f"env {CONFIG_VARIABLE} is relative: write an absolute path")
    return _Layer(values, f"{path}:", str)


def _parsed(text: str) -> Mapping[str, object]:
    import tomllib  # most have no file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:  # tells line and column
        raise Unusable(f"is not TOML ({error}): correct it") from error


def default_data_folder(environ: Mapping[str, str]) -> Path:
    """Find where the data is unless somebody says otherwise; relative where there is no such folder."""
    return _xdg_folder(environ, "XDG_DATA_HOME", ".local/share")


def _xdg_folder(environ: Mapping[str, str], base: str, below_home: str) -> Path:
    """Relative when neither the variable nor HOME is absolute; the XDG standard wants relative ones ignored."""
    if Path(environ.get(base, "")).is_absolute():
        return Path(environ[base], "legation")
    return Path(environ.get("HOME", ""), below_home, "legation")


def _from_home(value: object, environ: Mapping[str, str]) -> object:
    if isinstance(value, str | Path) and str(value).startswith("~/"):
        return (environ.get("HOME") or "~") + str(value)[1:]
    if isinstance(value, list):
        return [_from_home(each, environ) for each in value]
    return value


def _unknown(name: str, spell: Callable[[str], str]) -> Unusable:
    from difflib import get_close_matches

    near = get_close_matches(name, _BY_NAME, n=1)
    known = f"did you mean {spell(near[0])}?" if near else f"known are {', '.join(map(spell, _BY_NAME))}"
    return Unusable(f"is unknown: {known}")
