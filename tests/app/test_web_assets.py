from __future__ import annotations

import pytest

from app.web_assets import PageMissing, WebAssets, security_headers


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "main.js").write_text("1")
    (tmp_path / ".env").write_text("secret")
    (tmp_path / "notes.md").write_text("no")
    return tmp_path


def test_the_page_is_served_at_the_root(folder):
    assets = WebAssets(folder)
    page = assets.find("/")
    assert page == assets.find("/index.html")
    assert page.content == b"<!doctype html>" and page.content_type.startswith("text/html")
    assert assets.find("/main.js").content_type.startswith("text/javascript")


@pytest.mark.parametrize("path", ["/.env", "/notes.md", "/../app/server.py", "//main.js", "", "/x"])
def test_nothing_else_is(folder, path):
    assert WebAssets(folder).find(path) is None


def test_a_changed_file_has_another_tag(folder):
    before = WebAssets(folder).find("/main.js").etag
    assert WebAssets(folder).find("/main.js").etag == before
    (folder / "main.js").write_text("2")
    assert WebAssets(folder).find("/main.js").etag != before


def test_a_missing_page_is_an_error(tmp_path):
    with pytest.raises(PageMissing, match=r"index\.html"):
        WebAssets(tmp_path)


def test_the_policy_allows_own_files_and_sockets_only():
    policy = security_headers("localhost:8080")["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy
    assert "ws://localhost:8080" in policy and "unsafe" not in policy


@pytest.mark.parametrize("host", ["", "a; script-src *", "a b", "a\n"])
def test_a_strange_host_header_does_not_reach_the_policy(host):
    policy = security_headers(host)["Content-Security-Policy"]
    assert "ws:" not in policy and policy.count("script-src") == 1
