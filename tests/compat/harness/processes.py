"""Programs that a case starts.

Their output is kept; they are waited for with a limit, and ended by their own id.
"""

import os
import signal
import subprocess
import time

PATIENCE_S = 60


class Program:
    """One process; stdout and stderr go to files, which may be read while it runs."""

    def __init__(self, name, command, folder, environment=None, cwd=None, stdin=None):
        self.name, self.command = name, command
        self.out_path = os.path.join(folder, f"{name}.out")
        self.err_path = os.path.join(folder, f"{name}.err")
        environment = {**os.environ, **(environment or {})}
        with open(self.out_path, "ab") as out, open(self.err_path, "ab") as err:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=out,
                stderr=err,
                env=environment,
                cwd=cwd,
            )

    def out(self):
        with open(self.out_path, encoding="utf-8", errors="replace") as text:
            return text.read()

    def err(self):
        with open(self.err_path, encoding="utf-8", errors="replace") as text:
            return text.read()

    def running(self):
        return self.process.poll() is None

    def wait_for(self, text, limit_s=PATIENCE_S, count=1):
        """Waits until the text was printed so many times; a program that ends before fails it."""
        wait_until(
            lambda: self.out().count(text) >= count or not self.running(),
            f"{self.name} to print {text!r}",
            limit_s,
            self.last_words,
        )
        assert self.out().count(text) >= count, f"{self.name} ended early\n{self.last_words()}"

    def wait(self, limit_s=PATIENCE_S, code=0):
        try:
            found = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"{self.name} took over {limit_s} s\n{self.last_words()}"
            ) from None
        if code is not None:
            assert found == code, f"{self.name} ended with {found}\n{self.last_words()}"
        return self.out()

    def terminate(self, limit_s=PATIENCE_S):
        if self.running():
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(limit_s)
            except subprocess.TimeoutExpired:
                words = self.last_words()
                self.kill()
                raise AssertionError(f"{self.name} did not stop in {limit_s} s\n{words}") from None
        return self.out()

    def kill(self):
        if self.running():
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def last_words(self, lines=25):
        said = []
        for what, text in (("stdout", self.out()), ("stderr", self.err())):
            said += [f"-- {self.name} {what}:", *text.splitlines()[-lines:]]
        return "\n".join(said)


def wait_until(condition, what, limit_s=PATIENCE_S, context=lambda: ""):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s} s for {what}\n{context()}"
        time.sleep(0.05)
