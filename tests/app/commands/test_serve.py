from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import urllib.request
from argparse import ArgumentParser

import pytest

from app.__main__ import main
from app.commands import serve

TIMEOUT_S = 120.0


def parse(*arguments: str):
    parser = ArgumentParser()
    serve.add_parser(parser.add_subparsers())
    return parser.parse_args(["serve", *arguments])


def test_every_option_names_a_setting():
    arguments = parse("--port", "0", "--speech", "none", "--max-sessions", "3")
    assert {name for name in serve.CONFIG_OPTIONS if getattr(arguments, name) is not None} == {
        "port",
        "speech",
        "max_sessions",
    }


def test_a_port_that_is_taken_is_told_before_the_models_are_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"AddressUnavailable: cannot listen on 127.0.0.1:{port}" in error
    assert error.count("\n") == 1


@pytest.mark.models
async def test_it_says_where_the_page_is_and_ends_well_on_sigterm():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app", "serve", "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while b"ready" not in (line := await process.stdout.readline()):
                assert line, "it ended before it was ready"
            url = line.decode().split()[-1]
            health = await asyncio.to_thread(
                lambda: urllib.request.urlopen(f"{url}healthz", timeout=TIMEOUT_S).read()
            )
            assert json.loads(health) == {"status": "ok", "sessions": 0}
            process.send_signal(signal.SIGTERM)
            await process.stdout.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
