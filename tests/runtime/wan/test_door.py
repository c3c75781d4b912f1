"""Who must not come in, and what must not get through: refused, said once, others unharmed (plain and inside TLS)."""

import contextlib
import socket
import ssl
import threading
import time

import pytest

from isthmus.errors import InputError
from isthmus.runtime.environment import Members
from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.frames import HELLO_BYTES, Hello, StrangerError, federation_id, pack_hello
from isthmus.runtime.wan.identity import Identity
from isthmus.runtime.wan.rail import Rail, RailOptions

from .conftest import LOOPBACK, data, signal, wait_until


def port(members, region=0):
    return int(members.regions[region].rails[0].rpartition(":")[2])


def said_by(sock):
    """Whatever the door answers until it ends the connection."""
    sock.settimeout(5)
    answer = b""
    with contextlib.suppress(OSError):
        while piece := sock.recv(4096):
            answer += piece
    return answer


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
    "tls client hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "zeros": bytes(4096),
    "half a hello": pack_hello(Hello(federation=b"f" * 16, region=1, to_region=0, rail=0, stream=0, streams=3))[:40],
    "a plain hello": pack_hello(Hello(federation=b"f" * 16, region=1, to_region=0, rail=0, stream=0, streams=3)),
}


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_strangers_on_the_port_are_refused_with_one_line_each_while_training_goes_on(wan, tls, capfd):
    members = wan.members()
    with wan.rails(tls=tls, members=members) as rails:
        for body in GARBAGE.values():
            for _ in range(3):
                with socket.create_connection((LOOPBACK, port(members))) as sock:
                    sock.sendall(body)
                    sock.shutdown(socket.SHUT_WR)
                    said_by(sock)
        with socket.create_connection((LOOPBACK, port(members))):
            pass  # a probe says nothing and is no news
        assert wan.exchange(rails, 3) == [True, True]
        assert all(use.streams_lost == 0 for rail in rails for use in rail.counters().values())
    lines = [line for line in capfd.readouterr().err.splitlines() if "refused" in line and "the rail is closed" not in line]
    assert 1 <= len(lines) <= len(GARBAGE), lines
    assert len(set(lines)) == len(lines)


def test_a_caller_who_says_nothing_is_shown_out_and_holds_nobody_up(wan, monkeypatch, capfd):
    monkeypatch.setattr("isthmus.runtime.wan.door.HELLO_S_MAX", 0.3)
    members = wan.members()
    with contextlib.ExitStack() as stack:
        door = stack.enter_context(Door(members.regions[0].rails[0], federation_id(members), 0))
        silent = [stack.enter_context(socket.create_connection((LOOPBACK, port(members)))) for _ in range(20)]
        for sock in silent:
            sock.sendall(b"I")
        assert all(said_by(sock) == b"" for sock in silent)
        assert len(door.refusals) == 8
    assert capfd.readouterr().err.count("too little for too long") == 1


def opened_with(wan, members, left, right, timeout_s=2.0):
    """Both rails' `Rail.open`, with those identities; their results."""
    return wan.together(
        *(
            lambda number=number, identity=identity: Rail.open(members, number, 0, 1, timeout_s, RailOptions(identity=identity))
            for number, identity in enumerate((left, right))
        )
    )


def shut(results):
    for rail in results:
        if isinstance(rail, Rail):
            rail.close()


def test_a_certificate_of_another_authority_is_refused_and_both_sides_say_why(wan, capfd):
    results = opened_with(wan, wan.members(), wan.identity("r0"), wan.identity("r1", "theirs"))
    shut(results)
    assert isinstance(results[1], StrangerError)
    assert "its certificate is not good here" in str(results[1])  # the caller checks first
    assert "isthmus keys" in str(results[1])
    assert "refuses our certificate" in capfd.readouterr().err


def test_a_caller_with_a_wrong_certificate_that_trusts_everybody_is_refused_by_the_door(wan, capfd):
    members = wan.members()
    with Door(members.regions[0].rails[0], federation_id(members), 0, wan.identity("r0")):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(wan.keys / "theirs" / "r1.pem", wan.keys / "theirs" / "r1.key")
        for certified in (True, False):
            if not certified:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with socket.create_connection((LOOPBACK, port(members))) as sock, context.wrap_socket(sock) as wrapped:
                wrapped.sendall(GARBAGE["a plain hello"])
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    wrapped.recv(HELLO_BYTES)
    said = capfd.readouterr().err
    assert "its certificate is not good here" in said
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in said


def test_a_region_cannot_use_the_certificate_of_another(wan):
    members = wan.members()
    # Region 1 calls with the certificate of r2: signed by the right authority, but not who it says it is.
    results = opened_with(wan, members, wan.identity("r0"), wan.identity("r2"))
    shut(results)
    assert isinstance(results[1], StrangerError)
    assert "it says it is region 'r1', its certificate is that of 'r2'" in str(results[1])


def test_a_door_cannot_use_the_certificate_of_another_region(wan):
    results = opened_with(wan, wan.members(), wan.identity("r2"), wan.identity("r1"))
    shut(results)
    assert isinstance(results[1], StrangerError)
    assert "holds the certificate of region 'r2'" in str(results[1])


def test_the_coordinators_certificate_is_no_regions(wan):
    results = opened_with(wan, wan.members(), wan.identity("r0"), Identity.coordinator(wan.keys / "ours"))
    shut(results)
    assert "holds a certificate of isthmus://coordinator, not of a region" in str(results[1])


@pytest.mark.parametrize(("left", "right"), [("r0", None), (None, "r1")])
def test_one_side_with_keys_and_one_without_are_told_apart(wan, left, right):
    results = opened_with(wan, wan.members(), left and wan.identity(left), right and wan.identity(right))
    shut(results)
    assert all(isinstance(error, Exception) for error in results)
    assert "TLS" in str(results[1])


def test_only_tls_1_3_is_spoken(wan):
    members = wan.members()
    with Door(members.regions[0].rails[0], federation_id(members), 0, wan.identity("r0")):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection((LOOPBACK, port(members))) as sock,
            pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"),
        ):
            context.wrap_socket(sock)


def test_keys_that_are_missing_or_do_not_belong_together_are_an_input_error(wan, tmp_path):
    with pytest.raises(InputError, match=r"r9\.pem: is missing: TLS between regions needs it\n  hint: isthmus keys r9 -o"):
        wan.identity("r9")
    for name, source in (("ca.pem", "ca.pem"), ("r0.pem", "r1.pem"), ("r0.key", "r1.key")):
        (tmp_path / name).write_bytes((wan.keys / "ours" / source).read_bytes())
    with pytest.raises(InputError, match=r"is a certificate of isthmus://region/r1, expected isthmus://region/r0"):
        Identity.load(tmp_path, "r0")
    (tmp_path / "r0.pem").write_bytes((wan.keys / "ours" / "r0.pem").read_bytes())
    with pytest.raises(InputError, match=r"cannot be used with r0\.key and ca\.pem"):
        Identity.load(tmp_path, "r0")


def test_the_wan_is_never_crossed_in_the_clear_unless_the_user_says_so(wan):
    regions = [{"name": "a", "rails": ["127.0.0.1:29600"]}, {"name": "b", "rails": ["203.0.113.7:29600"]}]
    with pytest.raises(InputError, match=r"203\.0\.113\.7:29600 is not on the loopback interface(.|\n)*isthmus keys REGION"):
        Rail.open(Members.model_validate({"regions": regions}), 0, 0, 1, 1.0)
    with pytest.raises(InputError, match="ISTHMUS_INSECURE=1"):
        Door("203.0.113.7:29600", b"f" * 16, 0)


class Impostor:
    """A member gone bad: region 1 of 2, with a good hello, that then sends what it likes on stream 0."""

    def __init__(self, members):
        federation = federation_id(members)
        self.members = members
        self.hello = pack_hello(
            Hello(federation=federation, members=int.from_bytes(federation[:8], "little"), region=1, to_region=0, rail=0,
                  stream=0, streams=1, text="r1", instance=77)
        )

    @contextlib.contextmanager
    def stream(self):
        with socket.create_connection((LOOPBACK, port(self.members))) as sock:
            sock.sendall(self.hello)
            assert len(sock.recv(HELLO_BYTES)) == HELLO_BYTES
            yield sock


@pytest.fixture
def victim(wan):
    """A rail of region 0, its impostor, and the first stream between them (region 1's door is there, so nobody is gone)."""
    members = wan.members()
    impostor, result = Impostor(members), []
    with contextlib.ExitStack() as stack:
        stack.enter_context(Door(members.regions[1].rails[0], federation_id(members), 1))
        opening = threading.Thread(target=lambda: result.append(Rail.open(members, 0, 0, 1, 10.0)))
        opening.start()
        for _ in range(200):
            try:
                sock = stack.enter_context(impostor.stream())
                break
            except OSError:
                time.sleep(0.02)
        opening.join()
        rail = result[0]
        yield rail, impostor, sock
        rail.close()


BAD = {
    "oversized": data(5, 1 << 40, 0, b"x" * 1000)[:40] + b"\xff" * 20,
    "corrupt header": bytes([data(5, 8, 0, b"12345678")[0] ^ 1]) + data(5, 8, 0, b"12345678")[1:],
    "corrupt chunk": data(5, 8, 0, b"12345678")[:-1] + b"9",
    "replayed": data(5, 16, 0, b"12345678") * 2,
    "skipped": data(5, 8, 0, b"12345678", sequence=1),
    "overlap": data(5, 16, 0, b"12345678") + data(5, 16, 4, b"12345678", sequence=1),
    "acknowledges what was never sent": signal(3, 0, 5),
    "two sizes of one message": data(5, 16, 0, b"12345678") + data(5, 32, 8, b"12345678", sequence=1),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_frame_ends_its_stream_and_the_next_stream_completes_the_message(victim, what, capfd):
    rail, impostor, sock = victim
    into = bytearray(16)
    sock.sendall(BAD[what])
    assert said_by(sock) is not None  # the stream is ended
    wait_until(lambda: rail.counters()["r1"].streams_lost == 1)
    with impostor.stream() as again:
        ticket = rail.receive(1, 6, into)
        again.sendall(data(6, 16, 0, b"ABCDEFGH", serial=9) + data(6, 16, 8, b"IJKLMNOP", serial=9, sequence=1))
        ticket.wait(5)
        assert into == b"ABCDEFGHIJKLMNOP"
        again.sendall(signal(2, 2))
    assert capfd.readouterr().err.count("opened anew") == 1


def test_a_truncated_frame_lands_nothing_and_the_whole_one_lands_after_it(victim):
    rail, impostor, sock = victim
    into = bytearray(8)
    ticket = rail.receive(1, 5, into)
    sock.sendall(data(5, 8, 0, b"12345678")[:-3])
    sock.shutdown(socket.SHUT_WR)
    said_by(sock)
    with impostor.stream() as again:
        assert not ticket.done
        again.sendall(data(5, 8, 0, b"12345678"))
        ticket.wait(5)
        assert into == b"12345678"
        again.sendall(data(5, 8, 0, b"87654321", sequence=1) + signal(2, 2))  # the same message again: dropped
        wait_until(lambda: rail.counters()["r1"].chunks_again == 1)
    assert into == b"12345678"
