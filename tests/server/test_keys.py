"""API keys: the file, and that every route but the probes needs one (TRAPS SRV-03)."""

import hmac
import re
import warnings
from hashlib import sha256

import pytest

from forwardpass.errors import ParameterError
from forwardpass.server import keys as module
from forwardpass.server.keys import Keys, read_keys
from forwardpass.server.routes import ROUTES, Route

ALICE, BOB = "sk-alice-0123456789abcdef", "sk-bob==/+0123456789"


@pytest.fixture
def file(tmp_path):
    def write(text, mode=0o600):
        path = tmp_path / "keys.txt"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        return str(path)

    return write


def digest(key):
    return sha256(key.encode()).hexdigest()


def test_all_forms(file):
    lines = ["# people", "", ALICE, f"bob {BOB}", f"  carol\tsha256:{digest('c' * 20).upper()}  ",
             f"dave {'d' * 16} max_tokens_in_flight=4000", f"{'e' * 512} max_tokens_in_flight=7"]
    keys = read_keys(file("\ufeff" + "\r\n".join(lines)))
    assert [(key.name, key.limit) for key in keys.keys] == [
        ("key-1", None), ("bob", None), ("carol", None), ("dave", 4000), ("key-5", 7)]
    for key, name in ((ALICE, "key-1"), (BOB, "bob"), ("c" * 20, "carol"), ("d" * 16, "dave"), ("e" * 512, "key-5")):
        assert keys.find(key.encode()).name == name
    for wrong in (b"", ALICE[:-1].encode(), ALICE.encode() + b" ", ALICE.upper().encode(), digest(ALICE).encode(),
                  f"sha256:{digest(ALICE)}".encode(), b"\xff" * 30):
        assert keys.find(wrong) is None
    assert not any(ALICE in repr(key) or BOB in repr(key) for key in keys.keys)


@pytest.mark.parametrize("text, said", [
    ("", "found none"), ("\n# only this\n", "found none"), ("x" * 513, "up to 512"),
    (f"{ALICE}\nkéy-with-an-accent-0123", "line 2"), ("sha256:12", "64 hexadecimal"),
    (f"sha256:{'g' * 64}", "64 hexadecimal"), (f"sha256:{'0' * 65}", "64 hexadecimal"), (f"na/me {ALICE}", "a name is"),
    (f"{'n' * 65} {ALICE}", "a name is"), (f"{ALICE}\n{ALICE}", "line 2: this key stands there already"),
    (f"a {ALICE}\nb sha256:{digest(ALICE)}", "this key"), (f"a {ALICE}\na {BOB}", "this name"),
    (f"a {ALICE} max_tokens_in_flight=0", "whole number"), (f"a {ALICE} max_tokens_in_flight=-1", "whole number"),
    (f"a {ALICE} max_tokens_in_flight=many", "whole number"), (f"a {ALICE} priority=1", "3 words"),
    (f"a b {ALICE}", "3 words"), (b"\xff\xfe", "not UTF-8"), ("x" * (1 << 20) + "y", "longer"),
])
def test_files_that_are_refused(file, text, said):
    with pytest.raises(ParameterError, match=said) as info:
        read_keys(file(text))
    assert ALICE not in str(info.value) and BOB not in str(info.value)  # no key in a message


def test_a_missing_file(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ParameterError, match=re.escape(str(path))):
            read_keys(str(path))


def test_a_file_that_everybody_may_read(file):
    with pytest.warns(UserWarning, match="chmod o-r"):
        read_keys(file(ALICE, 0o644))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_keys(file(ALICE, 0o640))
        read_keys(file(f"sha256:{digest(ALICE)}", 0o644))  # digests are no secret


def test_short_keys_work_and_are_warned_of(file):
    with pytest.warns(UserWarning, match=r"less than 16 characters \(key-1, bob\)") as said:
        keys = read_keys(file(f"x\nbob {'b' * 15}\n{'c' * 16}"))
    assert keys.find(b"x").name == "key-1" and keys.find(b"b" * 15).name == "bob" and keys.find(b"y") is None
    assert "bbb" not in str(said[0].message)


def test_every_key_is_compared_in_constant_time(file, monkeypatch):
    compared = []
    monkeypatch.setattr(module, "hmac", hmac_like := type("Hmac", (), {
        "compare_digest": staticmethod(lambda a, b: compared.append((a, b)) or hmac.compare_digest(a, b))}))
    assert hmac_like is module.hmac
    keys = read_keys(file(f"{ALICE}\n{BOB}\n{'c' * 20}"))
    for token in (ALICE.encode(), b"nobody's"):
        compared.clear()
        keys.find(token)
        assert [b for _, b in compared] == [key.digest for key in keys.keys]
        assert {a for a, _ in compared} == {sha256(token).digest()}


async def nothing(call, body):
    return None


ALL = (*ROUTES, Route("GET", "/v1/things/{id:path}", nothing, "For a test."))


@pytest.fixture
def client(app, file):
    return app(routes=ALL, keys=read_keys(file(f"alice {ALICE}\nbob {BOB} max_tokens_in_flight=50")),
               max_tokens_per_key=900)


WRONG = {
    "wrong": f"Bearer {ALICE[:-1]}g", "bare": ALICE, "empty": "", "no key": "Bearer ", "scheme": f"Basic {ALICE}",
    "lower case": f"bearer {ALICE}", "trailing space": f"Bearer {ALICE} ", "two spaces": f"Bearer  {ALICE}",
    "tab": f"Bearer\t{ALICE}", "digest": f"Bearer {digest(ALICE)}", "stored": f"Bearer sha256:{digest(ALICE)}",
    "non-ASCII": b"Bearer caf\xc3\xa9-0123456789-0123", "bytes": b"Bearer \xff\xfe", "long": "Bearer " + "x" * 20_000,
}
WRONG = {name: {"Authorization": value} for name, value in WRONG.items()} | {
    "none": {}, "other headers": {"X-Api-Key": ALICE, "Api-Key": ALICE, "Cookie": f"Authorization={ALICE}"}}


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG)
def test_every_route_and_method_needs_a_key(client, headers):
    for route in ALL:
        path = re.sub(r"\{.*?\}", "x", route.path)
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"):
            answer = client.request(method, path, headers=headers, content=b"{}")
            if route.public:
                assert answer.status_code in (200, 405), (method, path)
                continue
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            if method != "HEAD":
                assert answer.json()["error"]["type"] == "authentication_error"
                assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", [
    "//version", "/VERSION", "/version/", "/version%0A", "/v1/../version", "/health/../version", "/health/",
    "/health%2F..%2Fversion", "/Health", "/health;a=b", "/health%00", "/health%0A", "/nowhere", "/metrics", "/",
    "/health/live/x", "//health", "/%68ealth%20",
])
def test_odd_paths_need_a_key_too(client, path):
    assert client.get(path).status_code in (401, 404)
    assert client.post(path, {}).status_code in (401, 404)


def test_who_has_a_key_comes_in(client, host):
    for key in (ALICE, BOB):
        assert client.get("/version", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    two = [("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {ALICE}")]
    assert client.get("/version", headers=two).status_code == 401


def test_terms_and_account_are_those_of_the_key(app, host, file):
    seen = []

    async def handler(call, body):
        seen.append((call.key.name, call.terms.key, call.terms.account))
        return None

    keys = read_keys(file(f"alice {ALICE}\nbob {BOB} max_tokens_in_flight=50"))
    client = app(routes=(Route("GET", "/see", handler, "For a test."),), keys=keys, max_tokens_per_key=900)
    for key in (ALICE, BOB, ALICE):
        client.get("/see", headers={"Authorization": f"Bearer {key}"})
    assert [(name, key, account.limit, account.above) for name, key, account in seen] == [
        ("alice", "alice", 900, host.account), ("bob", "bob", 50, host.account), ("alice", "alice", 900, host.account)]
    assert seen[0][2] is seen[2][2]


def test_without_keys_any_authorization_passes(app):
    client = app()
    for headers in WRONG.values():
        assert client.get("/version", headers=headers).status_code == 200
    assert isinstance(Keys([]).keys, tuple)
