//! A child process: started, watched, killed, stopped and woken, ended by its id.
//!
//! Invariants: its output is kept in files; a process that is dropped is killed.
//! Never: a signal to a process that is not this one's child.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// A running program.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Process {
    /// Starts a program; its output goes to `<folder>/<name>.out` and `.err`.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(
        program: &Path,
        arguments: &[String],
        environment: &[(&str, String)],
        folder: &Path,
        name: &str,
    ) -> anyhow::Result<Self> {
        let (out, err) = (
            folder.join(format!("{name}.out")),
            folder.join(format!("{name}.err")),
        );
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(environment.iter().map(|(key, value)| (*key, value)))
            // What a program complains of is its message, not where in the code it arose.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?)
            .kill_on_drop(true);
        let child = command
            .spawn()
            .with_context(|| format!("{} could not be started", program.display()))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            out,
            err,
        })
    }

    /// Waits for a line of its output that begins with `beginning`, and answers the rest of it.
    ///
    /// # Errors
    /// Where the process ends, or says nothing within `patience`.
    pub async fn line(&mut self, beginning: &str, patience: Duration) -> anyhow::Result<String> {
        let give_up = Instant::now() + patience;
        loop {
            let said = std::fs::read_to_string(&self.out)?;
            let complete = said.rsplit_once('\n').map_or("", |(lines, _)| lines);
            if let Some(rest) = complete
                .lines()
                .find_map(|line| line.strip_prefix(beginning))
            {
                return Ok(rest.to_owned());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "{} ended before it was ready ({status}): {}",
                    self.name,
                    self.complaints()
                );
            }
            if Instant::now() >= give_up {
                bail!(
                    "{} is not ready after {patience:?}: {}",
                    self.name,
                    self.complaints()
                );
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// Where the system does not say.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Where it does not come within `patience`.
    pub async fn end(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        match timeout(patience, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => bail!(
                "{} still runs after {patience:?}: {}",
                self.name,
                self.complaints()
            ),
        }
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    ///
    /// # Errors
    /// Where the system refuses.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.start_kill()?;
        self.child.wait().await?;
        Ok(())
    }

    /// Sends a signal: `STOP`, `CONT`, `TERM`.
    ///
    /// # Errors
    /// Where it has ended.
    pub async fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let id = self
            .child
            .id()
            .with_context(|| format!("{} has ended", self.name))?;
        let sent = Command::new("sh")
            .arg("-c")
            .arg(format!("kill -{signal} {id}"))
            .status()
            .await?;
        if !sent.success() {
            bail!("SIG{signal} could not be sent to {} ({id})", self.name);
        }
        Ok(())
    }

    /// Asks it to end in order, and waits until it has with exit code 0.
    ///
    /// # Errors
    /// Where it does not.
    pub async fn stop(&mut self, patience: Duration) -> anyhow::Result<()> {
        self.signal("TERM").await?;
        self.succeed(patience).await
    }

    /// Waits until it has ended with exit code 0.
    ///
    /// # Errors
    /// Where it does not.
    pub async fn succeed(&mut self, patience: Duration) -> anyhow::Result<()> {
        let status = self.end(patience).await?;
        if !status.success() {
            bail!("{} ended with {status}: {}", self.name, self.complaints());
        }
        Ok(())
    }

    /// The last lines that it wrote to stderr.
    #[must_use]
    pub fn complaints(&self) -> String {
        let text = std::fs::read(&self.err).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Everything that it wrote to stdout so far.
    #[must_use]
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}
