//! The programs that the kill tests run: `millstream` and `orders_enriched`, built with the feature
//! `failpoints`.
//!
//! Invariants: built by the same cargo, into the same target folder and with the same profile as
//! the test itself, so most of it is there already; two tests never build at once.
//! Never: a program that is older than its sources.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, bail};

/// Where the programs are.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// The command line tool, whose `broker` is a broker of its own.
    pub millstream: PathBuf,
    /// The example job.
    pub orders_enriched: PathBuf,
    /// The loop by hand.
    pub by_hand: PathBuf,
}

static BUILT: Mutex<Option<Binaries>> = Mutex::new(None);

impl Binaries {
    /// Builds the programs, once in a process, and answers where they are.
    ///
    /// # Errors
    /// Where cargo cannot build them; its messages are on stderr.
    pub fn build() -> anyhow::Result<Self> {
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(built) = &*built {
            return Ok(built.clone());
        }
        let place = Place::of_this_program()?;
        let folder = place.target.join("failpoints").join(&place.profile);
        std::fs::create_dir_all(&folder)?;
        let lock = std::fs::File::create(folder.join("lock"))?;
        lock.lock().context("the lock of the built programs")?;
        let [millstream, orders_enriched, by_hand] = place.build()?;
        let binaries = Self {
            millstream: keep(&millstream, &folder)?,
            orders_enriched: keep(&orders_enriched, &folder)?,
            by_hand: keep(&by_hand, &folder)?,
        };
        *built = Some(binaries.clone());
        Ok(binaries)
    }
}

/// Copies a program to where the next ordinary build does not replace it.
fn keep(program: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let name = program.file_name().context("a program has a name")?;
    let kept = folder.join(name);
    let fresh = folder.join(format!("{}.{}", name.to_string_lossy(), std::process::id()));
    std::fs::copy(program, &fresh)
        .with_context(|| format!("{} could not be copied", program.display()))?;
    // A rename, since the old one may be running.
    std::fs::rename(&fresh, &kept)?;
    Ok(kept)
}

/// Target folder and profile.
struct Place {
    target: PathBuf,
    profile: String,
}

impl Place {
    /// `<target>/<profile>/deps/<test>` or `<target>/<profile>/<program>`.
    fn of_this_program() -> anyhow::Result<Self> {
        let program = std::env::current_exe()?;
        let mut folder = program.parent().context("a program is in a folder")?;
        if folder.ends_with("deps") {
            folder = folder.parent().context("deps is in a profile's folder")?;
        }
        let profile = folder.file_name().context("a profile has a name")?;
        let target = folder
            .parent()
            .context("a profile's folder is in a target folder")?;
        Ok(Self {
            target: target.to_owned(),
            profile: profile.to_string_lossy().into_owned(),
        })
    }

    fn build(&self) -> anyhow::Result<[PathBuf; 3]> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
        let profile = if self.profile == "debug" {
            "dev"
        } else {
            &self.profile
        };
        let output = Command::new(cargo)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .args([
                "build",
                "--workspace",
                "--bin",
                "millstream",
                "--example",
                "orders_enriched",
                "--example",
                "by_hand",
            ])
            .args([
                "--features",
                "millstream-cli/failpoints,examples/failpoints",
            ])
            .args([
                "--message-format",
                "json-render-diagnostics",
                "--profile",
                profile,
            ])
            .arg("--target-dir")
            .arg(&self.target)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("cargo could not be started")?;
        if !output.status.success() {
            bail!(
                "cargo could not build the programs with failpoints: {}",
                output.status
            );
        }
        let messages = String::from_utf8(output.stdout)?;
        Ok([
            executable(&messages, "millstream")?,
            executable(&messages, "orders_enriched")?,
            executable(&messages, "by_hand")?,
        ])
    }
}

/// Where cargo says that it put a program.
fn executable(messages: &str, name: &str) -> anyhow::Result<PathBuf> {
    let mut said = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let target = message.get("target")?.get("name")?.as_str()?;
        let executable = message.get("executable")?.as_str()?;
        (target == name).then(|| PathBuf::from(executable))
    });
    said.next_back()
        .with_context(|| format!("cargo does not say where {name} is"))
}
