"""Settings: read once, from flags, then LEGATION_* variables, then legation.toml, then the defaults.

INV-1  The first of these that names a setting decides it, and `Settings.source` tells which that was.
INV-2  The current folder is never searched: a repository must not configure its own keeper.
INV-3  Either every value is good, or one error lists all that is wrong, each with its place.
"""

from legation.settings.fields import FIELDS, LogLevel, SettingField, Settings, flag, variable
from legation.settings.load import BIN_VARIABLE, CONFIG_VARIABLE, config_file, default_data_folder, load

__all__ = [
    "BIN_VARIABLE",
    "CONFIG_VARIABLE",
    "FIELDS",
    "LogLevel",
    "SettingField",
    "Settings",
    "config_file",
    "default_data_folder",
    "flag",
    "load",
    "variable",
]
