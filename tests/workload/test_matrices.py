"""The weight matrices make up the model but for its vectors."""

import pytest

from isthmus.workload import parameter_count, preset_names, read_workload
from isthmus.workload.matrices import weight_matrices


@pytest.mark.parametrize("name", preset_names())
def test_matrices_are_almost_all_of_a_model_and_never_more(name: str) -> None:
    shape = read_workload(name).shape
    elements = sum(rows * columns * count for rows, columns, count in weight_matrices(shape))
    assert 0.97 * parameter_count(shape) <= elements <= parameter_count(shape)
