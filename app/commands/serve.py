"""`python -m app serve`: the page and the WebSocket server, until SIGTERM or ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import socket
import time

from app.commands.models import pull_missing
from app.config import AppConfig, load_config
from app.errors import AddressUnavailable
from app.live import LiveRuntime
from app.model_table import needed_entries
from app.protocols.realtime import SessionDefaults
from app.runtime import Runtime
from app.server import Server

CONFIG_OPTIONS = (
    "host",
    "port",
    "llm",
    "asr",
    "dtype",
    "device",
    "prompt",
    "speech",
    "seed",
    "temperature",
    "max_sessions",
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("serve", help="the page and the WebSocket server")
    parser.add_argument("--host", help="default 127.0.0.1; any other needs FORESPEAK_TOKEN")
    parser.add_argument("--port", type=int, help="default 8080; 0 takes any free one")
    parser.add_argument("--llm", help="model id, GGUF file, folder or Hugging Face id")
    parser.add_argument("--asr", help="model id, folder, Hugging Face id or faster-whisper name")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "int8", "int4"))
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="of the language model")
    parser.add_argument("--prompt", metavar="FILE", help="what the assistant is told")
    parser.add_argument("--speech", choices=("hibari", "none"), help="none: text only")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--max-sessions", type=int)


def run(arguments: argparse.Namespace) -> int:
    config = load_config(**{name: getattr(arguments, name) for name in CONFIG_OPTIONS})
    _check_address(config.host, config.port)
    pull_missing(needed_entries(config.llm, config.asr))
    asyncio.run(serve(config))
    return 0


async def serve(config: AppConfig) -> None:
    """Load, warm up, then listen: a server that answers is ready."""
    started_s = time.perf_counter()
    runtime = await asyncio.to_thread(Runtime.load, config)
    live = LiveRuntime(runtime)
    server = Server(live, config, session_defaults(config, runtime))
    await live.start()
    try:
        await server.start()
        seconds = time.perf_counter() - started_s
        print(f"Forespeak is ready after {seconds:.1f} s: open {server.url}", flush=True)
        await server.run_until_signal()
    finally:
        await live.stop()


def _check_address(host: str, port: int) -> None:
    """Raise AddressUnavailable now rather than once the models are loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise AddressUnavailable(host, port, error.strerror or str(error)) from error


def session_defaults(config: AppConfig, runtime: Runtime) -> SessionDefaults:
    return SessionDefaults(
        model=config.llm or "default",
        transcription_model=config.asr or "default",
        voice=config.speech,
        instructions=runtime.prompt.system,
        temperature=config.temperature,
        max_reply_tokens=config.max_reply_tokens,
        languages=runtime.languages,
    )
