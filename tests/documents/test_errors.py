from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import InfeasibleError, InputError, nearest


def test_an_input_error_is_place_then_cause_then_hint() -> None:
    assert (
        str(InputError("f.yaml:3", "unknown key 'x'", "did you mean 'y'?"))
        == "f.yaml:3: unknown key 'x'\n  hint: did you mean 'y'?"
    )
    assert str(InputError("f.yaml", "no such file")) == "f.yaml: no such file"


def test_an_infeasible_error_names_what_binds() -> None:
    assert str(InfeasibleError("it does not fit", "memory")) == "it does not fit\n  binding constraint: memory"


def test_the_nearest_name_is_offered_whatever_its_case() -> None:
    assert nearest("h100-SXM", ["h100-sxm5", "h100-pcie", "t4"]) == "did you mean 'h100-sxm5'?"


def test_where_nothing_is_near_what_is_known_is_listed_up_to_24() -> None:
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    assert nearest("zzz", [f"name-{i:02}" for i in range(30)]).endswith("name-23, ... (30 in all)")


@given(name=st.text(max_size=5000), known=st.lists(st.text(min_size=1, max_size=20), max_size=30))
def test_any_name_gets_an_answer(name: str, known: list[str]) -> None:
    assert nearest(name, known).startswith(("did you mean ", "known: "))
