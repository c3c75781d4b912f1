import json
import sys

import pytest

from isthmus.cli import main


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *args: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["isthmus", "link", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


def test_a_link_is_answered_for_people_and_machines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, shown, _ = run(capsys, monkeypatch, "--rate", "100Gb/s", "--rtt", "58ms", "--loss", "1e-6", "--qps", "32")
    assert code == 0
    assert "725 MB must be in flight" in shown
    assert "NCCL_BUFFSIZE" in shown
    code, text, _ = run(capsys, monkeypatch, "--rate", "100Gb/s", "--rtt", "58ms", "--json")
    assert code == 0
    assert json.loads(text)["answer"]["product_bytes"] == pytest.approx(725e6)


def test_a_round_trip_quicker_than_light_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, shown, _ = run(capsys, monkeypatch, "--rate", "100Gb/s", "--rtt", "5ms", "--distance", "1300km")
    assert code == 1
    assert "light in fibre needs 12.7 ms" in shown


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--rate", "100Gb/s"), "error: isthmus link: neither --rtt nor --distance is given"),
        (("--rate", "100", "--rtt", "1ms"), "error: --rate: '100' has no unit"),
        (("--rate", "1Gb/s", "--rtt", "1ms", "--cc", "bbbr"), "error: --cc: unknown congestion control 'bbbr'"),
        (("--rate", "1Gb/s", "--rtt", "1ms", "--loss", "1.5"), "error: --loss: '1.5': a share of packets"),
        (("--rate", "1Gb/s", "--rtt", "0ms"), "error: --rtt: '0ms' is not above zero"),
    ],
)
def test_what_cannot_be_read_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    code, _, err = run(capsys, monkeypatch, *args)
    assert code == 2
    assert message in err
