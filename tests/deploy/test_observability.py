"""`isthmus deploy --to observability`: what promtool says of it, and what the files promise each other."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.deploy.observability import pieces
from isthmus.deploy.observability.dashboard import queries_of
from isthmus.deploy.observability.rules import planned_of
from isthmus.deploy.request import Request
from isthmus.deploy.sites import read_sites
from isthmus.plan import load_plan, save_plan

from .conftest import Isthmus, prepare

EXAMPLES = "one-node", "shenzhen-shanghai", "beijing-shenzhen-shanghai"  # no link, one, three
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not there")


def exporting(folder: Path, **predicted: float) -> Path:
    """An example whose ranks export, whose plan predicts, and whose nodes know where to send."""
    text = (folder / "sites.yaml").read_text()
    text = text.replace("    nodes:", "    export_port: 9600\n    nodes:")
    text = text.replace("regions:", "prometheus: 10.99.0.3:9090\nregions:", 1)
    (folder / "sites.yaml").write_text(text)
    plan = load_plan(folder / "plan.yaml")
    numbers = {"step_s": 1.5, "tokens_per_s": 1e6, "wan_bytes_per_step": 4e8} | predicted
    save_plan(plan.model_copy(update={"prediction": plan.prediction.model_copy(update=numbers)}), folder / "plan.yaml")
    return folder


def request_of(folder: Path) -> Request:
    return Request(plan=load_plan(folder / "plan.yaml"), plan_path=folder / "plan.yaml", sites=read_sites(folder / "sites.yaml"))


def written(isthmus: Isthmus, folder: Path) -> Path:
    code, _, error = isthmus(
        "deploy", str(folder / "plan.yaml"), "--sites", str(folder / "sites.yaml"), "--to", "observability", "-o",
        str(folder / "watch"),
    )  # fmt: skip
    assert code == 0, error
    return folder / "watch"


@promtool
@pytest.mark.parametrize("example", EXAMPLES)
def test_promtool_takes_the_rules_and_their_tests_pass(example: str, tmp_path: Path, isthmus: Isthmus) -> None:
    bundle = written(isthmus, exporting(prepare(tmp_path, example)))
    for arguments in ("check config prometheus.yml", "check rules rules.yml", "test rules rules_test.yml"):
        command = ["promtool", *arguments.split()]
        done = subprocess.run(command, cwd=bundle / "central", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    shutil.copy(next((bundle / "node/targets").iterdir()), bundle / "node/targets/this-node.json")
    agent = ["promtool", "check", "config", "--agent", "prometheus.yml"]
    done = subprocess.run(agent, cwd=bundle / "node", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_the_tests_of_the_rules_can_fail(tmp_path: Path, isthmus: Isthmus) -> None:
    central = written(isthmus, exporting(prepare(tmp_path))) / "central"
    rules: dict[str, Any] = yaml.safe_load((central / "rules.yml").read_text())
    alerts = [rule["alert"] for rule in rules["groups"][1]["rules"]]
    (central / "rules.yml").write_text(yaml.safe_dump({"groups": rules["groups"][:1]}))
    command = ["promtool", "test", "rules", "rules_test.yml"]
    done = subprocess.run(command, cwd=central, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    # All regions' silent ranks are one alert; the test silences one rank.
    assert {alert for alert in alerts if alert in done.stdout + done.stderr} == set(alerts)


def test_goodput_is_planned_for_exchanges_of_the_plans_size_at_the_fabrics_rate(given: Path) -> None:
    planned = planned_of(request_of(exporting(given, wan_bytes_per_step=4e8)))
    (there, back) = planned.links
    assert (there.src, there.dst) == (back.dst, back.src)
    exchange = 4 * 4e8  # inner_steps of the plan
    assert there.goodput_bytes_per_s == pytest.approx(exchange / (exchange / there.rate_bytes_per_s + there.rtt_s))


def test_a_plan_without_prediction_has_no_alert_that_compares_with_it(given: Path) -> None:
    texts = {piece.path: piece.text for piece in pieces(request_of(exporting(given, step_s=0.0)))}
    assert "IsthmusStepSlowerThanPlan" not in texts["central/rules.yml"]
    assert "IsthmusWanBelowPlan" in texts["central/rules.yml"]


def test_every_query_of_the_dashboard_asks_for_what_ranks_export_or_rules_record(given: Path) -> None:
    texts = {piece.path: piece.text for piece in pieces(request_of(exporting(given)))}
    recorded = {rule["record"] for rule in yaml.safe_load(texts["central/rules.yml"])["groups"][0]["rules"]}
    queries = queries_of(json.loads(texts["grafana/isthmus.json"]))
    assert len(queries) > 15
    for query in queries:
        assert any(name in query for name in [*recorded, "isthmus_", "up{", "ALERTS{"]), query


@pytest.mark.parametrize(
    ("change", "said"),
    [(("    export_port: 9600\n", ""), "exports nothing"), (("prometheus: 10.99.0.3:9090\n", ""), "names no Prometheus")],
)
def test_what_cannot_be_collected_is_refused_with_what_to_write(
    change: tuple[str, str], said: str, given: Path, isthmus: Isthmus
) -> None:
    exporting(given)
    (given / "sites.yaml").write_text((given / "sites.yaml").read_text().replace(*change))
    code, _, error = isthmus("deploy", "plan.yaml", "--sites", "sites.yaml", "--to", "observability", "-o", "watch")
    assert (code, (given / "watch").exists()) == (2, False)
    assert said in error
    assert "such as" in error


def test_rules_of_another_plan_are_found_by_the_check(given: Path, isthmus: Isthmus) -> None:
    bundle = written(isthmus, exporting(given))
    assert isthmus("deploy", "--check", str(bundle))[0] == 0
    path = bundle / "central/rules.yml"
    path.write_text(path.read_text().replace("vector(1.5)", "vector(2.5)"))
    code, out, _ = isthmus("deploy", "--check", str(bundle))
    assert code == 2
    assert "isthmus:plan_step_seconds is vector(2.5), the plan's is vector(1.5)" in out
