"""Apache Kafka's jars, fetched once from Maven into the user's cache, and JVMs that use them."""

import hashlib
import os
import shutil
import subprocess
import tempfile

KAFKA = "4.3.1"
# The last release whose test jar has StreamsEosTest; it runs on the jars of KAFKA.
SYSTEM_TESTS = "4.2.0"
HERE = os.path.dirname(os.path.abspath(__file__))
COMPAT = os.path.dirname(HERE)
ROOT = os.path.dirname(os.path.dirname(COMPAT))
CACHE = os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "millstream"
)
HOME = os.path.join(CACHE, f"kafka-{KAFKA}")
LIBS = os.path.join(HOME, "libs")
SYSTEM_TEST_JAR = os.path.join(HOME, "system-tests", f"kafka-streams-{SYSTEM_TESTS}-test.jar")
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"


def built(name):
    """Where cargo puts a program of ours."""
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    return os.path.join(target, "debug", name)


def fetch():
    """The jars, and our own Java programs compiled against them."""
    complete = os.path.join(HOME, "complete")
    if not os.path.exists(complete):
        shutil.rmtree(HOME, ignore_errors=True)
        os.makedirs(HOME)
        pom = os.path.join(COMPAT, "kafka", "pom.xml")
        # Under the cache, so that Maven never looks for a project around the caller.
        maven = ["mvn", "-q", "-B", "-f", pom]
        subprocess.run(
            [*maven, f"{PLUGIN}:copy-dependencies", f"-DoutputDirectory={LIBS}"], check=True
        )
        artifact = f"org.apache.kafka:kafka-streams:{SYSTEM_TESTS}:jar:test"
        folder = os.path.dirname(SYSTEM_TEST_JAR)
        copy = [f"{PLUGIN}:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
        subprocess.run([*maven, *copy], check=True)
        open(complete, "w", encoding="utf-8").close()
    return compile_ours()


def ours():
    """Our own Java sources, and the folder of their classes: another one for other sources, so that
    two checkouts may run at a time."""
    sources = os.path.join(COMPAT, "java")
    names = sorted(os.path.join(sources, n) for n in os.listdir(sources) if n.endswith(".java"))
    content = hashlib.sha256()
    for name in names:
        with open(name, "rb") as source:
            content.update(source.read())
    return names, os.path.join(HOME, f"classes-{content.hexdigest()[:12]}")


def compile_ours():
    """Compiles `java/*.java` where a source has changed; answers the folder of the classes."""
    names, classes = ours()
    if not os.path.exists(classes):
        fresh = tempfile.mkdtemp(dir=HOME)
        compiler = ["javac", "-nowarn", "-Xlint:none", "-cp", os.path.join(LIBS, "*"), "-d", fresh]
        subprocess.run([*compiler, *names], check=True)
        os.rename(fresh, classes)
    return classes


def java(main, *arguments, heap="256m", first=(), options=()):
    """The command line for a class: small, and quick to start rather than quick in the long run."""
    path = os.pathsep.join([*first, ours()[1], os.path.join(LIBS, "*")])
    logging = os.path.join(COMPAT, "kafka", "log4j2.properties")
    command = ["java", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    command += ["-Djava.awt.headless=true", f"-Dlog4j2.configurationFile={logging}", *options]
    return [*command, "-cp", path, main, *[str(argument) for argument in arguments]]
