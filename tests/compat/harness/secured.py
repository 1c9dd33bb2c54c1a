"""An Apache Kafka whose listeners ask for TLS and SASL, each in its own way.

Certificates are made for the run and live in the broker's folder; SCRAM users are made when the
data directory is formatted. The listener PLAINTEXT stays, for Kafka's tools.
"""

import os
import subprocess

from harness import jmx
from harness.brokers import Kafka, free_port

# User and password of every mechanism, and one whose password is changed and who is deleted.
USER, PASSWORD = "orders", "right=pass word"
PASSING = {"changed": "first-password", "deleted": "first-password"}
# How long a session lasts at the listener RENEWED.
SESSION_MS = 8000
PLAIN, SCRAM_256, SCRAM_512 = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"

# Listener: protocol, certificate, mechanisms.
LISTENERS = {
    "TLS": ("SSL", "right", ()),
    "MUTUAL": ("SSL", "right", ()),
    "EXPIRED": ("SSL", "expired", ()),
    "ELSEWHERE": ("SSL", "elsewhere", ()),
    "BOTH": ("SASL_SSL", "right", (PLAIN, SCRAM_256, SCRAM_512)),
    "SCRAM": ("SASL_PLAINTEXT", None, (SCRAM_512,)),
    "RENEWED": ("SASL_PLAINTEXT", None, (SCRAM_512,)),
}


# For `openssl ca`, which alone can give a certificate a time in the past.
AUTHORITY = """
[ca]
default_ca = here
[here]
certificate = authority.pem
private_key = authority.key
database = index
serial = serial
new_certs_dir = .
default_md = sha256
policy = names
[names]
commonName = supplied
"""


def quoted(text):
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class Certificates:
    """Two authorities, three servers, two clients: keys and certificates as PEM files."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def make(self):
        for authority in ("authority", "stranger"):
            self.openssl(
                "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-days", "3650", "-subj", f"/CN={authority}", "-keyout", f"{authority}.key",
                "-out", f"{authority}.pem",
            )  # fmt: skip
        self.write("authority.cnf", AUTHORITY)
        self.write("index", "")
        self.write("serial", "01\n")
        here = "DNS:localhost,IP:127.0.0.1"
        self.sign("right", here)
        self.sign("expired", here, since="2020", until="2021")
        self.sign("elsewhere", "DNS:elsewhere.example")
        self.sign("client", "DNS:client")
        self.sign("outdated", "DNS:client", since="2020", until="2021")

    def sign(self, name, names, since="2021", until="2049"):
        """One file with the key and the certificate, as Kafka's PEM stores have them."""
        self.openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        self.write(f"{name}.ext", f"subjectAltName={names}\n")
        self.openssl(
            "ca", "-batch", "-notext", "-config", "authority.cnf", "-in", f"{name}.csr",
            "-extfile", f"{name}.ext", "-startdate", f"{since}0101000000Z",
            "-enddate", f"{until}0101000000Z", "-out", f"{name}.crt",
        )  # fmt: skip
        parts = [self.path(f"{name}.key"), self.path(f"{name}.crt")]
        self.write(f"{name}.pem", "".join(open(part, encoding="utf-8").read() for part in parts))

    def write(self, name, content):
        with open(self.path(name), "w", encoding="utf-8") as text:
            text.write(content)

    def path(self, name):
        return os.path.join(self.folder, name)

    def openssl(self, *arguments):
        made = subprocess.run(
            ["openssl", *arguments], cwd=self.folder, capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            raise RuntimeError(f"openssl {' '.join(arguments)}\n{made.stderr}")


class SecuredKafka(Kafka):
    """Kafka with the listeners above; `at(name)` is the address of one."""

    def __init__(self, more=()):
        super().__init__()
        self.certificates = Certificates(os.path.join(self.folder, "certificates"))
        self.ports = {name: free_port() for name in LISTENERS}
        self.jmx_port = free_port()
        self.options = jmx.options(self.jmx_port)
        users = [(mechanism, USER, PASSWORD) for mechanism in (SCRAM_256, SCRAM_512)]
        users += [(SCRAM_512, user, password) for user, password in PASSING.items()]
        self.format_options = [
            f"--add-scram={mechanism}=[name={quoted(user)},password={quoted(password)}]"
            for mechanism, user, password in users
        ]
        self.more = (*more, *self.lines())

    def at(self, name):
        return f"127.0.0.1:{self.ports[name]}"

    def format(self):
        self.certificates.make()
        super().format()

    def lines(self):
        """What is set beside the file of the plain broker; the last word counts."""
        addresses = {"PLAINTEXT": self.address, **{name: self.at(name) for name in LISTENERS}}
        listeners = ",".join(f"{name}://{address}" for name, address in addresses.items())
        controller = f"CONTROLLER://127.0.0.1:{self.controller_port}"
        protocols = [f"{name}:{protocol}" for name, (protocol, _, _) in LISTENERS.items()]
        yield f"listeners={listeners},{controller}"
        yield f"advertised.listeners={listeners},{controller}"
        yield "listener.security.protocol.map=" + ",".join(
            ["CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", *protocols]
        )
        for name, (_, certificate, mechanisms) in LISTENERS.items():
            prefix = f"listener.name.{name.lower()}"
            if certificate:
                yield f"{prefix}.ssl.keystore.type=PEM"
                yield f"{prefix}.ssl.keystore.location={self.certificates.path(certificate)}.pem"
                yield f"{prefix}.ssl.truststore.type=PEM"
                yield f"{prefix}.ssl.truststore.location={self.certificates.path('authority.pem')}"
            if mechanisms:
                yield f"{prefix}.sasl.enabled.mechanisms={','.join(mechanisms)}"
            for mechanism in mechanisms:
                module = f"{prefix}.{mechanism.lower()}.sasl.jaas.config"
                package = "org.apache.kafka.common.security"
                if mechanism == PLAIN:
                    escaped = quoted(PASSWORD).replace("\\", "\\\\")
                    user = f"user_{USER}={escaped}"
                    yield f"{module}={package}.plain.PlainLoginModule required {user};"
                else:
                    yield f"{module}={package}.scram.ScramLoginModule required;"
        yield "listener.name.mutual.ssl.client.auth=required"
        renewed = "listener.name.renewed.scram-sha-512"
        yield f"{renewed}.connections.max.reauth.ms={SESSION_MS}"

    def counts(self, listener, *names):
        """What the broker itself has counted at a listener, all network threads together."""
        beans = f"kafka.server:type=socket-server-metrics,listener={listener},networkProcessor=*"
        found = dict.fromkeys(names, 0)
        for _, name, value in jmx.counts(self.jmx_port, beans, *names):
            found[name] += value
        return found
