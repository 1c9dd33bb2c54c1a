"""Our clients at listeners of Apache Kafka that ask for TLS and SASL: let in, refused, renewed.

The program under test is `tests/src/bin/secured_client.rs`; it says in one line a surface what
became of it, and fails where a refusal is not prompt.
"""

import os
import subprocess
import time

from harness import cases, jars
from harness.secured import (
    PASSING,
    PASSWORD,
    PLAIN,
    SCRAM_256,
    SCRAM_512,
    SESSION_MS,
    USER,
    SecuredKafka,
)

SURFACES = ("admin", "producer", "transactions", "group", "reader", "offsets", "streams")


def build():
    command = ["cargo", "build", "--quiet", "--features", "tests/tls", "-p", "tests", "--bin"]
    command += ["secured_client", "-p", "examples", "--example", "orders_enriched"]
    subprocess.run(command, cwd=jars.ROOT, check=True)
    jars.fetch()


SUITE = cases.Suite(
    "security",
    "our clients at listeners of Apache Kafka that ask for TLS and SASL",
    prepare=build,
    only_on=SecuredKafka.name,
    kafka=SecuredKafka,
)


def escaped(value):
    return value.replace("\\", "\\\\")


def sasl(mechanism, user=USER, password=PASSWORD):
    return {
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": escaped(password),
    }


def tls(bench, authority="authority"):
    path = bench.broker.certificates.path(f"{authority}.pem")
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": path}


def client(bench, name, command, listener, settings, topic=None, **more):
    """Starts the program under test. The folder's name makes the topic one of this case alone."""
    topic = topic or f"{os.path.basename(bench.folder)}-{name}"
    lines = "".join(f"{key}={value}\n" for key, value in settings.items())
    properties = bench.file(f"{name}.properties", lines)
    address = listener if ":" in listener else bench.broker.at(listener)
    binary = jars.built("secured_client")
    return bench.program(name, [binary, command, address, properties, topic], **more)


def let_in(bench, name, listener, settings):
    said = client(bench, name, "round-trip", listener, settings).wait(60)
    assert "read 200 of 200" in said, said


def refused(bench, name, listener, settings, kind, *words):
    """Every surface fails promptly, with the kind and the words."""
    program = client(bench, name, "refusals", listener, settings, topic="never-written")
    said = program.wait(60)
    lines = dict(line.split(": ", 1) for line in said.splitlines())
    assert set(lines) == set(SURFACES), said
    for surface in SURFACES:
        assert lines[surface].startswith(f"{kind} "), f"{surface} is not {kind}: {lines[surface]}"
        for word in words:
            assert word in lines[surface], f"{word!r} is not said by {surface}: {lines[surface]}"
    assert PASSWORD not in said + program.err(), said


@SUITE.case()
def sasl_ssl_lets_every_mechanism_in(bench):
    for mechanism in (PLAIN, SCRAM_256, SCRAM_512):
        settings = {"security.protocol": "SASL_SSL", **sasl(mechanism), **tls(bench)}
        let_in(bench, mechanism.lower(), "BOTH", settings)


@SUITE.case()
def sasl_plaintext_takes_the_line_of_kafkas_tools(bench):
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    password = escaped(PASSWORD.replace('"', '\\"'))
    line = f'{module} required \\\n  username="{USER}" \\\n  password="{password}";'
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": SCRAM_512,
        "sasl.jaas.config": line,
    }
    let_in(bench, "jaas", "SCRAM", settings)


@SUITE.case()
def ssl_lets_in_and_mutual_tls_with_a_certificate(bench):
    settings = {"security.protocol": "SSL", **tls(bench)}
    let_in(bench, "tls", "TLS", settings)
    store = bench.broker.certificates.path("client.pem")
    let_in(bench, "mutual", "MUTUAL", {**settings, "ssl.keystore.location": store})


@SUITE.case()
def our_job_runs_over_sasl_ssl(bench):
    settings = {"security.protocol": "SASL_SSL", **sasl(SCRAM_512), **tls(bench)}
    lines = "".join(f"{key}={value}\n" for key, value in settings.items())
    command = [jars.built("examples/orders_enriched")]
    command += ["--bootstrap", bench.broker.at("BOTH"), "--orders=3000"]
    command += ["--command-config", bench.file("client.properties", lines)]
    said = bench.program("job", command).wait(120)
    assert "3000 orders read" in said, said


@SUITE.case()
def wrong_credentials_are_refused_at_once(bench):
    """Y2."""
    both = {"security.protocol": "SASL_SSL", **tls(bench)}
    kind, words = "AuthenticationFailed", ("sasl.password", "(58)")
    for name, listener, settings in (
        ("wrong-512", "BOTH", {**both, **sasl(SCRAM_512, password="wrong")}),
        ("wrong-plain", "BOTH", {**both, **sasl(PLAIN, password="wrong")}),
        ("unknown", "BOTH", {**both, **sasl(SCRAM_256, user="nobody")}),
    ):
        refused(bench, name, listener, settings, kind, *words, settings["sasl.username"])


@SUITE.case()
def a_mechanism_that_is_not_enabled_is_told_with_those_that_are(bench):
    settings = {"security.protocol": "SASL_PLAINTEXT", **sasl(SCRAM_256)}
    refused(bench, "mechanism", "SCRAM", settings, "MechanismNotOffered", SCRAM_256, SCRAM_512)
    settings = {"security.protocol": "SASL_PLAINTEXT", **sasl(SCRAM_512)}
    refused(bench, "none", bench.address, settings, "NoSasl", "security.protocol")


@SUITE.case()
def a_certificate_that_cannot_be_believed_is_refused_at_once(bench):
    """Y5."""
    settings = {"security.protocol": "SSL", **tls(bench)}
    refused(bench, "expired", "EXPIRED", settings, "Tls", "expired")
    refused(bench, "elsewhere", "ELSEWHERE", settings, "Tls", "elsewhere.example")
    stranger = {"security.protocol": "SSL", **tls(bench, "stranger")}
    refused(bench, "stranger", "TLS", stranger, "Tls", "UnknownIssuer", "ssl.truststore")
    any_host = {**settings, "ssl.endpoint.identification.algorithm": ""}
    let_in(bench, "any-host", "ELSEWHERE", any_host)
    refused(bench, "expired-any-host", "EXPIRED", any_host, "Tls", "expired")


@SUITE.case()
def mutual_tls_without_a_certificate_is_refused_at_once(bench):
    settings = {"security.protocol": "SSL", **tls(bench)}
    refused(bench, "without", "MUTUAL", settings, "Tls", "ssl.keystore")


@SUITE.case()
def mutual_tls_with_an_expired_certificate_is_refused_at_once(bench):
    store = bench.broker.certificates.path("outdated.pem")
    settings = {"security.protocol": "SSL", **tls(bench), "ssl.keystore.location": store}
    refused(bench, "outdated", "MUTUAL", settings, "CertificateExpired", "2021-01-01", "ssl.keystore")


@SUITE.case()
def a_client_without_tls_is_told_at_a_tls_listener(bench):
    """Y5."""
    refused(bench, "plain", "TLS", {}, "TlsListener", "security.protocol")


@SUITE.case()
def sessions_are_renewed_and_nothing_is_lost(bench):
    """The broker counts renewals, and connections that it has had to end: there are none."""
    settings = {"security.protocol": "SASL_PLAINTEXT", **sasl(SCRAM_512)}
    program = client(bench, "steady", "steady", "RENEWED", settings, stdin=subprocess.PIPE)
    program.wait_for("running")
    time.sleep(4 * SESSION_MS / 1000)
    assert program.running(), program.last_words()
    renewals, killed = "successful-reauthentication-total", "expired-connections-killed-count"
    counted = bench.broker.counts("RENEWED", renewals, killed)
    assert counted[renewals] >= 6, counted
    assert counted[killed] == 0, counted
    program.process.stdin.close()
    said = program.wait(60)
    assert "in order: true" in said, said


def ends_with_the_session(bench, user, *change):
    """A user that is changed while its client works: the client ends when its session does."""
    own = sasl(SCRAM_512, user=user, password=PASSING[user])
    settings = {"security.protocol": "SASL_PLAINTEXT", **own}
    program = client(bench, user, "steady", "RENEWED", settings, stdin=subprocess.PIPE)
    program.wait_for("running")
    entity = ["--entity-type", "users", "--entity-name", user]
    bench.tools("kafka.admin.ConfigCommand", "--alter", *entity, *change)
    said = program.wait(SESSION_MS / 1000 + 20, code=1)
    failed = [line for line in said.splitlines() if line.startswith("failed: ")]
    assert failed and "AuthenticationFailed" in failed[0] and user in failed[0], said
    assert PASSING[user] not in said + program.err(), said


@SUITE.case()
def a_changed_password_ends_the_client_with_its_session(bench):
    changed = f"{SCRAM_512}=[iterations=8192,password=second-password]"
    ends_with_the_session(bench, "changed", "--add-config", changed)


@SUITE.case()
def a_deleted_user_ends_the_client_with_its_session(bench):
    ends_with_the_session(bench, "deleted", "--delete-config", SCRAM_512)
