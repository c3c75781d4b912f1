"""Conditions of the rules: facts -> findings, each under the id that rules.toml gives it words for."""
