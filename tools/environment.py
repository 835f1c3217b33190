"""Installer of `.venv`; standard library only, because it runs before anything is installed.

`python tools/environment.py` brings what tests and contributors need, `--only lab` what a reader needs. On Linux
without an NVIDIA driver torch comes from PyTorch's own index, whose CPU build has a tenth of the size, if that can be
reached; `--build cuda` and `--build cpu` choose. Runs on any Python 3.6 or newer, which can be told what is wrong.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

__all__ = ["constraints_for", "fingerprint", "main", "problem", "venv_python"]

ROOT = Path(__file__).resolve().parents[1]
OLDEST_TORCH = (2, 10)
STAMPS = {"lab": ".course-lab", "dev": ".course-ready"}  # by what was installed: dev holds lab
ADDRESS = re.compile(rb"(?m)^(Repository|commit) = .*\n")  # in pyproject.toml; nothing has to be installed for them
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DRIVER = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/usr/lib/wsl/lib")  # NVIDIA's, or WSL's
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
    if tuple(version[:3]) == (3, 13, 0):  # https://github.com/python/cpython/issues/125608
        return f"torch.compile computes wrong results on Python 3.13.0 ({sys.executable}): take another, even 3.13.1"
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


def needs_no_cuda(system=sys.platform, paths=DRIVER):
    """Return whether this is a Linux without a driver that CUDA could use; elsewhere pip's torch is small anyway."""
    return system.startswith("linux") and not any(os.path.exists(path) for path in paths)


def reachable(url, limit_s=10):
    """Return whether somebody answers at `url`."""
    try:
        urllib.request.urlopen(url, timeout=limit_s).close()
    except (OSError, ValueError):
        return False
    return True


def install_torch(venv, build, torch):
    """Put PyTorch's CPU build into `venv`, where `build` asks for it, or nothing else would be of use and it is there.

    `build` is "cpu", "cuda", or None: what fits this machine. A torch of the other build goes; one that is there stays.
    """
    python = venv_python(venv)
    present = installed_torch(python)
    of_cpu = (present or "").endswith("+cpu")
    if present and build and of_cpu != (build == "cpu"):
        subprocess.run([str(python), "-m", "pip", "uninstall", "--yes", "--quiet", "torch"], check=True)
        present = None
    if present or build == "cuda":
        return
    if build != "cpu" and not needs_no_cuda():
        return
    if not reachable(CPU_INDEX + "/torch/"):
        if build == "cpu":
            raise OSError(f"{CPU_INDEX} cannot be reached")
        return
    print("PyTorch without CUDA, since there is no NVIDIA driver here. Another time: make lab TORCH=cuda", flush=True)
    run_pip(python, "--no-deps", "--index-url", CPU_INDEX, f"torch=={torch or pinned_torch()}")


def pinned_torch():
    """Return the version of torch in constraints.txt."""
    return re.findall(r"(?m)^torch==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"))[0]


def install(venv, extra, torch=None):
    """Install the course with what `extra` names, at the versions of constraints.txt; `torch` overrides torch's."""
    python = venv_python(venv)
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    constraints = venv / "course-constraints.txt"
    present = installed_torch(python)
    constraints.write_text(constraints_for(text, torch or (present if usable(present) else None)), encoding="utf-8")
    run_pip(python, "--constraint", str(constraints), "--editable", f"{ROOT}[{extra}]")


def run_pip(python, *arguments):
    """Run the pip of `python`, and show its complaints and what takes long; raises OSError with the reason."""
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    steps = threading.Thread(target=lambda: [show_step(line.decode(errors="replace")) for line in process.stdout or ()])
    steps.start()
    said = []
    for line in process.stderr or ():  # shown as it comes, and kept for the reason
        said.append(line.decode(errors="replace"))
        sys.stderr.write(said[-1])
    steps.join()
    if process.wait():
        raise OSError(reason_of("".join(said)))


def show_step(line):
    """Print a line of pip's in short where a reader waits for it: a large download, or the installation at the end."""
    download = re.match(
        r"\s*(?:Downloading|Using cached|Processing) (?:\S*/)?([^\s/-]+)-\S+(?: \((\d+\.?\d* [MG]B)\))?", line
    )
    if download and (download[2] or download[1] == "torch"):
        print("  " + download[1] + (f": {download[2]}" if download[2] else ""), flush=True)
    if line.count(",") > 5 and line.startswith("Installing collected packages: "):
        print(f"  installing {len(line.split(','))} packages, a minute or two", flush=True)


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
    parser.add_argument("--only", choices=["lab"], help="install what a reader needs, and no tools for tests")
    parser.add_argument("--build", choices=["cpu", "cuda"], help="which build of PyTorch; without it, what fits")
    options = parser.parse_args(arguments)
    reason = problem()
    if reason:
        print(reason, file=sys.stderr)
        return 1
    venv, extra = options.venv, options.only or "dev"
    wanted = fingerprint([ROOT / "pyproject.toml", ROOT / "constraints.txt"]) + (options.torch or "")
    stamps = [venv / STAMPS[name] for name in ("lab", extra)]
    ready = venv_python(venv).exists() and any(says(venv / STAMPS[name], wanted) for name in (extra, "dev"))
    if ready and options.build is None:
        stamps[-1].write_text(wanted, encoding="utf-8")
        return 0
    print(f"Setting up {venv}: a few minutes, and some GB where PyTorch has to be downloaded.", flush=True)
    try:
        if not venv_python(venv).exists():
            create(venv)
        install_torch(venv, options.build, options.torch)
        install(venv, extra, options.torch)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"The set-up did not finish: {error}\nRepeat the command; what is there is kept.", file=sys.stderr)
        return 1
    for stamp in stamps:
        stamp.write_text(wanted, encoding="utf-8")
    return 0


def says(stamp, wanted):
    """Return whether the file `stamp` exists and holds `wanted`."""
    return stamp.exists() and stamp.read_text(encoding="utf-8") == wanted


if __name__ == "__main__":
    sys.exit(main())
