//! The named points at which a process can be told to die, and the file by which it is told.
//!
//! Invariants: every name stands in the code of the crate that it begins with.
//! Never: a point that a commit does not pass, except those of checkpoint and recovery.

use std::path::{Path, PathBuf};

/// Points in the process that runs the job.
pub const JOB: &[&str] = &[
    "streams.between-outputs",
    "streams.before-flush",
    "streams.after-flush",
    "streams.before-offsets",
    "streams.after-offsets",
    "streams.before-end",
    "streams.after-end",
];

/// Points in the process that runs the broker.
pub const BROKER: &[&str] = &[
    "broker.after-produce-append",
    "broker.after-offsets",
    "broker.before-prepare",
    "broker.after-prepare",
    "broker.between-markers",
    "broker.before-complete",
    "broker.after-complete",
    "broker.before-sync",
    "broker.after-sync",
    "broker.before-end-answer",
];

/// Points in a broker that recovers what the one before left behind.
pub const RECOVERY: &[&str] = &[
    "log.recovery.before-replay",
    "log.recovery.after-replay",
    "log.recovery.before-points",
    "log.recovery.before-clear",
    "log.recovery.after-clear",
];

/// Points in a checkpoint; there is one every ten seconds.
pub const CHECKPOINT: &[&str] = &[
    "log.checkpoint.before-points",
    "log.checkpoint.before-recycle",
];

/// The file that arms a process while it runs.
#[derive(Debug, Clone)]
pub struct Trigger {
    file: PathBuf,
}

impl Trigger {
    /// A trigger of its own for the process with this name.
    #[must_use]
    pub fn new(folder: &Path, name: &str) -> Self {
        Self {
            file: folder.join(format!("{name}.failpoint")),
        }
    }

    /// What the process's environment has to say.
    #[must_use]
    pub fn environment(&self) -> (&'static str, String) {
        (
            "MILLSTREAM_FAILPOINT",
            format!("file:{}", self.file.display()),
        )
    }

    /// Lets the process die when it comes to the point for the `turn`th time from now on.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn arm(&self, point: &str, turn: u64) -> anyhow::Result<()> {
        let fresh = self.file.with_extension("fresh");
        std::fs::write(&fresh, format!("{point}@{turn}"))?;
        // Renamed, so that the process never reads half of it.
        Ok(std::fs::rename(&fresh, &self.file)?)
    }

    /// Takes it back.
    ///
    /// # Errors
    /// Where the file cannot be removed.
    pub fn disarm(&self) -> anyhow::Result<()> {
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}
