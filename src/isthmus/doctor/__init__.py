"""The doctor: what people's tools really printed -> typed facts -> findings with evidence, cause and fix.

Readers turn text into facts (no reader knows a rule), rules turn facts into findings (no rule sees text), `causes` tells
roots from consequences. Nothing here needs torch, a GPU or a network; only `live` and `bundle` touch the machine.
"""
