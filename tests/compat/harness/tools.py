"""Kafka's command-line programs, called in one JVM that is kept (`java/ToolServer.java`)."""

import base64
import subprocess

from harness import jars

TOOLS = "org.apache.kafka.tools."


class Result:
    def __init__(self, name, arguments, code, out, err):
        self.name, self.arguments, self.code, self.out, self.err = name, arguments, code, out, err

    def __str__(self):
        said = "\n".join((self.out + self.err).splitlines()[-70:])
        return f"{self.name} {' '.join(self.arguments)}\nended with {self.code}:\n{said}"


class Tools:
    """`tools("TopicCommand", "--list")`; asserts the exit code, which is 0 unless it is said."""

    def __init__(self, address, log):
        self.address = address
        command = jars.java("ToolServer", heap="384m")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )

    def __call__(self, name, *arguments, stdin="", code=0, bootstrap="--bootstrap-server"):
        main = name if name.startswith("kafka.") else TOOLS + name
        arguments = [str(argument) for argument in arguments]
        if bootstrap:
            arguments = [bootstrap, self.address, *arguments]
        fields = [main, stdin, *arguments]
        line = " ".join(base64.b64encode(field.encode()).decode() for field in fields)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().rstrip("\n").split(" ")
        assert len(answer) == 3, f"the JVM of the tools ended while {name} ran"
        out, err = (base64.b64decode(text).decode(errors="replace") for text in answer[1:])
        result = Result(name, arguments, int(answer[0]), out, err)
        assert code is None or result.code == code, str(result)
        return result

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
