"""`models list` and `models pull`: what can be fetched, what is here, and fetching it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from app import model_cache
from app.errors import UnknownModel
from app.model_cache import ModelCache
from app.model_table import (
    MODELS,
    ModelEntry,
    ModelKind,
    default_entries,
    entries_of,
    find_entry,
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("models", help="list and fetch models")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="every model this project can fetch, and what is here")
    pull = actions.add_parser("pull", help="fetch and check models (default: those a start needs)")
    pull.add_argument("ids", nargs="*", metavar="ID", help="ids as printed by `models list`")
    pull.add_argument("--test", action="store_true", help="also what the tests need")
    pull.add_argument("--verify", action="store_true", help="read and check what is here as well")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "list":
        console = Console()
        if not console.is_terminal:
            console.width = 120  # a pipe has no width; rich would take 80 and fold
        console.print(_listing(ModelCache()))
        return 0
    pull_models(_chosen(arguments.ids, arguments.test), verify=arguments.verify)
    return 0


def pull_models(entries: Sequence[ModelEntry], *, verify: bool = False) -> None:
    """Fetch what is missing, with a bar per model on stderr.

    What is fetched is checked before it is put in place; `verify` reads present files again.
    """
    cache = ModelCache()
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.fields[stage]:>8}  {task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        for entry in entries:
            total = entry.download_bytes
            task = bars.add_task(entry.id, total=total, stage="checking")
            if not console.is_terminal and cache.find(entry) is None:
                console.print(f"fetching {entry.id} ({total / 1e6:.0f} MB)")
            cache.pull(entry, _updater(bars, task), verify=verify)
            bars.update(task, completed=total, stage="ready")


def pull_missing(entries: Sequence[ModelEntry]) -> None:
    """Fetch those that are not here; says nothing where all are."""
    cache = ModelCache()
    if missing := [entry for entry in entries if cache.find(entry) is None]:
        pull_models(missing)


def _updater(bars: Progress, task: TaskID) -> model_cache.OnProgress:
    def update(progress: model_cache.Progress) -> None:
        bars.update(task, completed=progress.done_bytes, stage=progress.stage)

    return update


def _chosen(ids: Sequence[str], with_test_data: bool) -> list[ModelEntry]:
    """Entries to pull, in table order of the request. Raises UnknownModel."""
    chosen: list[ModelEntry] = []
    for model_id in ids:
        entry = find_entry(model_id)
        if entry is None:
            raise UnknownModel(model_id, "model", (known.id for known in MODELS))
        chosen.append(entry)
    if not ids:
        chosen.extend(default_entries())
    if with_test_data:
        chosen.extend(entries_of(ModelKind.TOKENIZER))
    return list(dict.fromkeys(chosen))


def _listing(cache: ModelCache) -> Table:
    table = Table(
        title=f"models in {cache.cache_dir}  (* default)", box=box.SIMPLE, title_justify="left"
    )
    table.add_column("id", no_wrap=True)
    for heading in ("kind", "what", "MB", "licence"):
        table.add_column(heading, justify="right" if heading == "MB" else "left")
    table.add_column("from", overflow="fold")
    table.add_column("here")
    for entry in MODELS:
        table.add_row(
            f"{entry.id} *" if entry.is_default else entry.id,
            entry.kind,
            entry.about,
            f"{entry.num_bytes / 1e6:.0f}",
            entry.licence,
            "\n".join(package.name for package in entry.packages),
            "yes" if cache.find(entry) else "no",
        )
    return table
