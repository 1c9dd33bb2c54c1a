"""The programs of `golden/`, compiled against this release's jars or an older client's."""

import os
import subprocess

from harness import jars

GOLDEN = os.path.join(jars.COMPAT, "golden")
SOURCES = {
    "Traffic": ("Steps", "Groups", "Administration", "Traffic"),
    "Login": ("Steps", "Login"),
    "Older": ("Steps", "Older"),
    "Refusals": ("Steps", "Refusals"),
}
# The last client that has AlterConfigs, and transactions of the first kind alone.
OLDER = "3.9.1"


def older_client():
    """Its jar; it comes before those of the release."""
    folder = os.path.join(jars.CACHE, f"kafka-clients-{OLDER}")
    jar = os.path.join(folder, f"kafka-clients-{OLDER}.jar")
    if not os.path.exists(jar):
        pom = os.path.join(jars.COMPAT, "kafka", "pom.xml")
        command = ["mvn", "-q", "-B", "-f", pom, f"{jars.PLUGIN}:copy"]
        command += [f"-Dartifact=org.apache.kafka:kafka-clients:{OLDER}"]
        subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True)
    return jar


def command(main, folder, *arguments):
    """Compiles a program into the folder; answers the command that runs it."""
    first = [older_client()] if main == "Older" else []
    path = os.pathsep.join([*first, os.path.join(jars.LIBS, "*")])
    sources = [os.path.join(GOLDEN, f"{name}.java") for name in SOURCES[main]]
    compiler = ["javac", "-nowarn", "-Xlint:none", "-cp", path, "-d", folder, *sources]
    compiled = subprocess.run(compiler, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    return jars.java(main, *arguments, first=[folder, *first], heap="512m")
