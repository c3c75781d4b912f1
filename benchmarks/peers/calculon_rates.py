"""Calculon's samples/s of given executions, run by Calculon's own Python.

    python calculon_rates.py CHECKOUT EXECUTIONS.json RATES.json
"""

import json
import logging
import sys
from pathlib import Path

checkout, given, taken = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
sys.path.insert(0, str(checkout))

import calculon  # noqa: E402
from calculon.llm import Llm  # noqa: E402
from calculon.system import System  # noqa: E402

app = Llm.Application(calculon.io.read_json_file(str(checkout / "models" / "gpt3-175B.json")))
system = calculon.io.read_json_file(str(checkout / "systems" / "a100_80g.json"))
system["mem2"]["GiB"] = 0  # no offload tier
rates: list[float | None] = []
for execution in json.loads(given.read_text(encoding="utf-8")):
    model, site = Llm(app, logging.Logger("calculon")), System(system)
    try:
        model.compile(site, Llm.Execution.from_json(execution))
        model.run(site)
        rates.append(model.get_sample_rate())
    except Llm.Error:
        rates.append(None)
taken.write_text(json.dumps(rates), encoding="utf-8")
