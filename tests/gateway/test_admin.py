"""The admin token: made once, kept to its owner, never shown; and the port that asks for it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from pages import visit

from maitred.gateway.admin import BadToken, Token, admin, ensure_token


def secret_of(home: Path) -> str:
    return (home / "admin-token").read_text().strip()


def test_it_is_made_once(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    token = ensure_token(home)
    secret = secret_of(home)
    assert len(secret) >= 32
    assert token.fits(f"Bearer {secret}".encode())
    assert ensure_token(home).fits(f"Bearer {secret}".encode())
    assert secret_of(home) == secret
    assert os.listdir(home) == ["admin-token"]
    assert ensure_token(tmp_path / "b").fits(f"Bearer {secret}".encode()) is False


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        ensure_token(tmp_path / "home")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "home" / "admin-token").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o666])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    ensure_token(tmp_path)
    (tmp_path / "admin-token").chmod(mode)
    with pytest.raises(BadToken, match="can be read by others") as caught:
        ensure_token(tmp_path)
    assert secret_of(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("content", ["", "\n", "short", "a" * 40 + "\x00", "é" * 40, "a" * 20 + "\n" + "b" * 20])
def test_a_file_without_a_usable_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "admin-token"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(BadToken, match="no usable token"):
        ensure_token(tmp_path)
    assert path.read_text() == content


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("x" * 40)
    (tmp_path / "other").chmod(0o600)
    (tmp_path / "admin-token").symlink_to(tmp_path / "other")
    with pytest.raises(OSError):
        ensure_token(tmp_path)


def test_two_servers_that_start_at_once_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def late(source: Any, target: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        ensure_token(tmp_path)  # the other one was quicker
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    token = ensure_token(tmp_path)
    assert token.fits(f"Bearer {secret_of(tmp_path)}".encode())
    assert os.listdir(tmp_path) == ["admin-token"]


@pytest.mark.parametrize(
    "given",
    [b"", b"Bearer", b"Bearer ", b"Basic s3cret-s3cret-s3cret", b"s3cret-s3cret-s3cret", b"Bearer s3cret-s3cret-s3creT",
     b"Bearer s3cret-s3cret-s3cret2", b"Bearer \xff\xff", b"Bearer s3cret-s3cret-s3cret s3cret-s3cret-s3cret"],
)  # fmt: skip
def test_what_does_not_fit(given: bytes) -> None:
    token = Token("s3cret-s3cret-s3cret")
    assert not token.fits(given)
    assert token.fits(b"bearer s3cret-s3cret-s3cret")
    assert "s3cret" not in f"{token!r} {token}"


def test_the_port_asks_everybody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = admin(ensure_token(tmp_path), lambda: "up 1\n")
    good = {"Authorization": f"Bearer {secret_of(tmp_path)}"}
    for path in ("/metrics", "/", "/nope", "/docs"):
        for headers in ({}, {"Authorization": "Bearer nope"}, {"Cookie": f"token={secret_of(tmp_path)}"}):
            page = visit(app, path, headers=headers)
            assert page.status == 401
            assert page.headers["www-authenticate"] == "Bearer"
            assert secret_of(tmp_path) not in page.text
    assert visit(app, "/metrics", headers=good).text == "up 1\n"
    assert visit(app, "/nope", headers=good).status == 404
    assert visit(app, "/metrics", "POST", good).status == 405
    assert secret_of(tmp_path) not in caplog.text


def test_the_token_in_the_query_is_no_token(tmp_path: Path) -> None:
    app = admin(ensure_token(tmp_path), lambda: "up 1\n")
    assert visit(app, f"/metrics?token={secret_of(tmp_path)}").status == 401
