"""Crates whose own tests are suites here: out of cargo's registry, built once into the cache."""

import glob
import json
import os
import shutil
import subprocess
import venv

from harness import jars

# One folder for all of them and for the client in Rust, so that librdkafka is built once.
TARGET = os.path.join(jars.CACHE, "crates", "target")


# The bindings of the zstd that rdkafka asks for are made with it, and PyPI has it in one piece.
LIBCLANG = "18.1.1"


def libclang():
    """Answers the folder of the library."""
    folder = os.path.join(jars.CACHE, "crates", f"libclang-{LIBCLANG}")
    inside = os.path.join(folder, "lib", "python*", "site-packages", "clang", "native")
    if not glob.glob(os.path.join(inside, "libclang.so")):
        venv.create(folder, clear=True, with_pip=True)
        pip = [os.path.join(folder, "bin", "pip"), "install", "--quiet"]
        package = f"libclang=={LIBCLANG}"
        subprocess.run([*pip, "--disable-pip-version-check", package], check=True)
    return glob.glob(inside)[0]


def environment():
    """What a build of Millstream was told counts not here: all crates are built in one way."""
    told = ("CARGO_TARGET_DIR", "CARGO_INCREMENTAL", "CARGO_PROFILE_", "RUSTFLAGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    # The library alone has no headers of its own; the compiler's do.
    headers = subprocess.run(
        ["cc", "-print-file-name=include"], stdout=subprocess.PIPE, check=True, text=True
    )
    return {
        **kept,
        "CARGO_TARGET_DIR": TARGET,
        "CARGO_PROFILE_DEV_DEBUG": "0",
        "LIBCLANG_PATH": libclang(),
        "BINDGEN_EXTRA_CLANG_ARGS": f"-I{headers.stdout.strip()}",
    }


def run(*words, folder, **more):
    return subprocess.run(["cargo", *words], cwd=folder, env=environment(), check=True, **more)


def source(crate, version):
    """A copy of a crate's source in the cache: cargo itself fetches it and checks its sum."""
    folder = os.path.join(jars.CACHE, "crates", f"{crate}-{version}")
    copy = os.path.join(folder, "source")
    if not os.path.exists(copy):
        asking = os.path.join(folder, "asking")
        os.makedirs(os.path.join(asking, "src"), exist_ok=True)
        open(os.path.join(asking, "src", "lib.rs"), "w", encoding="utf-8").close()
        manifest = '[package]\nname = "asking"\nedition = "2021"\n[workspace]\n[dependencies]\n'
        with open(os.path.join(asking, "Cargo.toml"), "w", encoding="utf-8") as text:
            text.write(f'{manifest}{crate} = "={version}"\n')
        said = run("metadata", "--format-version=1", folder=asking, stdout=subprocess.PIPE)
        (found,) = [one for one in json.loads(said.stdout)["packages"] if one["name"] == crate]
        shutil.copytree(os.path.dirname(found["manifest_path"]), f"{copy}.new", dirs_exist_ok=True)
        os.rename(f"{copy}.new", copy)
    return copy


def tests(crate, version, *features, fit=lambda folder: None, programs=()):
    """The test programs of a crate, or some of them, name -> path.

    `fit` does what the source needs before; it may find that it has been there already.
    """
    folder = source(crate, version)
    stamp = os.path.join(os.path.dirname(folder), "programs.json")
    if os.path.exists(stamp):
        with open(stamp, encoding="utf-8") as text:
            built = json.load(text)
        if all(map(os.path.exists, built.values())):
            return built
    fit(folder)
    chosen = [f"--test={name}" for name in programs] or ["--tests"]
    words = ["test", *chosen, "--no-run", "--message-format=json", *features]
    said = run(*words, folder=folder, stdout=subprocess.PIPE, text=True).stdout
    made = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    built = {
        one["target"]["name"]: one["executable"]
        for one in made
        if one.get("executable") and one["profile"]["test"]
    }
    with open(stamp, "w", encoding="utf-8") as text:
        json.dump(built, text)
    return built
