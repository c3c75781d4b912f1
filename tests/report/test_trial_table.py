from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from isthmus.errors import InputError
from isthmus.report import trial_table
from isthmus.units import show_bytes, show_seconds


def shown(results: dict[str, Any], width: int = 80) -> str:
    out = StringIO()
    Console(file=out, width=width, color_system=None).print(trial_table(results))
    return out.getvalue()


def test_every_strategy_has_one_row_of_the_json_s_figures_in_80_columns(any_results: dict[str, Any]) -> None:
    text = shown(any_results)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    for one in any_results["strategies"]:
        line = next(line for line in text.splitlines() if line[1:].startswith(one["name"] + " "))
        measured = one["measured"]
        for cell in (
            f"{measured['tokens_per_s']:,.0f}",
            show_bytes(measured["wan_bytes_per_step"]),
            show_seconds(one["predicted"]["step_s"]),
            show_seconds(measured["step_s"]),
            f"{one['ratio']:.2f}",
        ):
            assert f" {cell}" in line
        assert line.endswith({True: "equal", False: "DIFFER", None: " -"}[one["replicas_equal"]])


def test_the_best_row_alone_is_marked(results: dict[str, Any]) -> None:
    marked = [line for line in shown(results).splitlines() if line.startswith("*")]
    assert [line.split()[0] for line in marked] == ["*local-steps-32-int4"]


def test_the_verdict_stands_under_the_table(results: dict[str, Any]) -> None:
    assert "local-steps-32-int4 trains 7.3 times as fast as flat" in shown(results, 200)


def test_names_are_neither_markup_nor_terminal_codes(results: dict[str, Any]) -> None:
    results["strategies"][0]["name"] = "[bold]\x1b[31mx\n"
    results["fabric"]["name"] = "[link=file:///]y\x1b[2J"
    text = shown(results, 120)
    assert "\x1b" not in text
    assert "[bold]\ufffd[31mx\ufffd" in text
    assert "[link=file:///]y\ufffd[2J" in text


def test_a_missing_value_is_named_by_its_place(results: dict[str, Any]) -> None:
    del results["strategies"][1]["measured"]["tokens_per_s"]
    with pytest.raises(InputError) as caught:
        trial_table(results)
    assert str(caught.value) == (
        "results.json: strategies.1.measured.tokens_per_s: field required\n"
        "  hint: the file is written by `isthmus try`; run it again with this version"
    )
