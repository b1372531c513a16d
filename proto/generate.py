# SPDX-License-Identifier: Apache-2.0
"""Regenerates the Python code of proto/ultima/v1.

The generated files are committed, so that installing Ultima needs no compiler of protocol buffers; a check
regenerates them in a scratch folder and compares. The versions of grpcio-tools and mypy-protobuf are pinned in
pyproject.toml, because their output differs from one release to the next.

    python proto/generate.py            writes the files
    python proto/generate.py --check    says which ones are not current; exit status 1 if any
"""

from __future__ import annotations

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parent
HEADER = "# SPDX-License-Identifier: Apache-2.0\n"


def plugin(name: str) -> str:
    """Path of a protoc plugin that is installed beside this interpreter, whether or not its folder is on PATH."""
    return f"--plugin=protoc-gen-{name}={Path(sys.executable).parent / f'protoc-gen-{name}'}"


def generate(out: Path) -> list[Path]:
    """Writes the code of all proto files under `out` and returns the files, in order of name.

    Raises RuntimeError if the compiler refuses a file; it has then said why on standard error.
    """
    from grpc_tools import protoc

    sources = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("ultima/v1/*.proto"))
    out.mkdir(parents=True, exist_ok=True)
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={ROOT}",
            f"--proto_path={files('grpc_tools') / '_proto'}",
            plugin("mypy"),
            plugin("mypy_grpc"),
            f"--python_out={out}",
            f"--mypy_out=quiet:{out}",
            f"--grpc_python_out={out}",
            f"--mypy_grpc_out=quiet:{out}",
            *sources,
        ]
    )
    if status:
        raise RuntimeError(f"protoc ended with status {status}")
    written = sorted([*out.glob("ultima/v1/*_pb2*.py"), *out.glob("ultima/v1/*_pb2*.pyi")])
    for path in written:
        text = path.read_text()
        if not text.startswith(HEADER):
            path.write_text(HEADER + text)
    return written


def stale() -> list[str]:
    """Names of the committed files that differ from what would be generated now, in either direction."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = {path.name: path.read_text() for path in generate(Path(scratch))}
    held = {path.name: path.read_text() for path in ROOT.glob("ultima/v1/*_pb2*.py*")}
    return sorted(name for name in fresh.keys() | held.keys() if fresh.get(name) != held.get(name))


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        names = stale()
        for name in names:
            print(f"proto/ultima/v1/{name} is not current: run `make proto`", file=sys.stderr)
        return 1 if names else 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for path in generate(ROOT):
        print(path.relative_to(ROOT.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
