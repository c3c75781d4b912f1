"""How settings are shown with reason and source: in a table, and as comments of a configuration file."""

from collections.abc import Iterable
from textwrap import wrap

from isthmus.deploy.settings import Setting

__all__ = ["NOT_VALIDATED", "as_table", "noted"]

NOT_VALIDATED = "not validated on a device"


def as_table(settings: Iterable[Setting]) -> str:
    """A Markdown table of them."""
    rows = [f"| `{each.name}` | `{each.value}` | {each.reason} | {each.source} |" for each in settings]
    return "\n".join(["| setting | value | because | source |", "|---|---|---|---|", *rows])


def noted(setting: Setting, mark: str = "#") -> list[str]:
    """Reason and source as comment lines of a configuration file."""
    return [f"{mark} {line}" for line in wrap(f"{setting.reason} [{setting.source}]", 116)]
