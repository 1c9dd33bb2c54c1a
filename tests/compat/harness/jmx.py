"""What a Kafka counts of itself, read over JMX on the loopback address."""

import subprocess

from harness import jars


def options(port):
    """What a JVM has to be told so that it can be asked."""
    return [
        f"-Dcom.sun.management.jmxremote.port={port}",
        "-Dcom.sun.management.jmxremote.host=127.0.0.1",
        "-Dcom.sun.management.jmxremote.authenticate=false",
        "-Dcom.sun.management.jmxremote.ssl=false",
        "-Djava.rmi.server.hostname=127.0.0.1",
    ]


def counts(port, beans, *names):
    """The attributes of all beans that the pattern fits: (bean, attribute, value) each."""
    url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi"
    tool = jars.java(
        "org.apache.kafka.tools.JmxTool",
        "--jmx-url", url, "--object-name", beans, "--attributes", ",".join(names),
        "--one-time", "--report-format", "properties",
    )  # fmt: skip
    said = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    found = []
    for line in said.splitlines():
        place, _, value = line.rpartition("=")
        bean, _, name = place.rpartition(":")
        if name in names:
            found.append((bean, name, float(value)))
    return found
