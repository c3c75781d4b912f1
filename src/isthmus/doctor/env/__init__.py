"""The environment linter: what NCCL makes of a variable, from a table of facts and NCCL's own way of reading."""
