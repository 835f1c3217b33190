"""How does `.venv` come to hold what the course needs? Standard library only; runs before anything is installed.

Runs on any Python 3.6 or newer, so that an old one can be told what is wrong with it.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["constraints_for", "fingerprint", "main", "problem", "venv_python"]

ROOT = Path(__file__).resolve().parents[1]
OLDEST_TORCH = (2, 11)
STAMP = ".course-ready"
ADDRESS = re.compile(rb"(?m)^(Repository|commit) = .*$")  # in pyproject.toml; nothing has to be installed for them
REASONS = (  # what pip says, and what it means
    (r"no space left|errno 28", "the disk is full. .venv takes 2 GB with a CPU build of torch, about 7 GB with CUDA"),
    (
        r"name resolution|getaddrinfo|network is unreachable|connection (refused|timed out|aborted)|proxyerror|"
        r"newconnectionerror|max retries",
        "no network, or a proxy that pip does not know: set HTTPS_PROXY. Without a network, install elsewhere first",
    ),
    (r"certificate verify failed|sslerror", "the network's certificate is not trusted: see pip's option --cert"),
    (r"permission denied|errno 13", "this folder cannot be written: clone the course into a folder of your own"),
)


def problem(version=sys.version_info, modules=("venv", "ensurepip")):
    """Return why this Python cannot make the environment, in one line with the cure, or None if it can."""
    if tuple(version[:2]) < (3, 11):
        found = ".".join(str(part) for part in version[:3])
        return f"Python 3.11 or newer is needed, this is {found} ({sys.executable}). Try: make lab PYTHON=python3.13"
    for module in modules:
        try:
            __import__(module)
        except ImportError:
            return f"{sys.executable} lacks the module {module}. On Debian and Ubuntu: sudo apt install python3-venv"
    return None


def venv_python(venv):
    """Return the path of the interpreter inside the folder `venv` on this platform."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def fingerprint(files):
    """Return a hash over the contents of `files`, but for the course's address: where it changes, the environment is
    out of date."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(ADDRESS.sub(b"", path.read_bytes()))
    return digest.hexdigest()


def constraints_for(text, torch):
    """Return the text of constraints.txt in which torch, if one is installed, stands for itself and so is kept."""
    if torch is None:
        return text
    kept = [line for line in text.splitlines() if not re.match(r"torch\s*==", line)]
    return "\n".join([*kept, f"torch=={torch}"]) + "\n"


def installed_torch(python):
    """Return the version of the torch that the interpreter `python` can import, or None. Torch is not imported."""
    code = "from importlib.metadata import version; print(version('torch'))"
    done = subprocess.run([str(python), "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.decode().strip() or None


def usable(torch):
    """Return whether the version string `torch` meets the floor that pyproject.toml states."""
    found = re.match(r"(\d+)\.(\d+)", torch or "")
    return bool(found) and tuple(int(part) for part in found.groups()) >= OLDEST_TORCH


def create(venv):
    """Make the empty environment; it sees the packages of this Python only where they hold a usable torch."""
    shared = ["--system-site-packages"] if usable(installed_torch(sys.executable)) else []
    subprocess.run([sys.executable, "-m", "venv", "--clear", *shared, str(venv)], check=True)


def install(venv, torch=None):
    """Install the course and its tools into `venv`, at the versions of constraints.txt; `torch` overrides torch's."""
    python = venv_python(venv)
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    constraints = venv / "course-constraints.txt"
    present = installed_torch(python)
    constraints.write_text(constraints_for(text, torch or (present if usable(present) else None)), encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    command = [*pip, "--constraint", str(constraints), "--editable", f"{ROOT}[dev]"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    said = []
    for line in process.stderr or ():  # shown as it comes, and kept for the reason
        said.append(line.decode(errors="replace"))
        sys.stderr.write(said[-1])
    if process.wait():
        raise OSError(reason_of("".join(said)))


def reason_of(said):
    """Return what kept pip from installing, in one line with the cure, from what it `said`."""
    for pattern, reason in REASONS:
        if re.search(pattern, said, re.IGNORECASE):
            return reason
    return "pip could not install everything; its own words stand above"


def main(arguments=None):
    """Make or update the environment, and do nothing if it is up to date; return the exit status."""
    parser = argparse.ArgumentParser(description="Make or update .venv, which holds what the course needs.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="folder of the environment")
    parser.add_argument("--torch", help="use this version of torch instead of the one in constraints.txt")
    options = parser.parse_args(arguments)
    reason = problem()
    if reason:
        print(reason, file=sys.stderr)
        return 1
    venv, stamp = options.venv, options.venv / STAMP
    wanted = fingerprint([ROOT / "pyproject.toml", ROOT / "constraints.txt"]) + (options.torch or "")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted and venv_python(venv).exists():
        stamp.touch()
        return 0
    print(f"Setting up {venv}: a few minutes, and some GB where PyTorch has to be downloaded.", flush=True)
    try:
        if not venv_python(venv).exists():
            create(venv)
        install(venv, options.torch)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"The set-up did not finish: {error}\nRepeat the command; what is there is kept.", file=sys.stderr)
        return 1
    stamp.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
