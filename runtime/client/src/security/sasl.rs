//! The credentials, and the exchange by which they are proven.
//!
//! Invariants: a user proves to be itself and nobody else; what is printed has no password.
//! Never: sends anything (the connection does).

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::scram::{Command, Hash, Scram};

/// How a user proves who it is (`sasl.mechanism`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// The password itself is sent: for TLS only.
    Plain,
    /// A proof of the password is sent, with SHA-256.
    ScramSha256,
    /// A proof of the password is sent, with SHA-512.
    ScramSha512,
}

impl Mechanism {
    pub(super) const ALL: [Self; 3] = [Self::Plain, Self::ScramSha256, Self::ScramSha512];

    /// The registered name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A password: printed as a word for one.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(pub(super) Arc<str>);

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[hidden]")
    }
}

/// A user, its password and the mechanism.
#[derive(Clone, PartialEq, Eq)]
pub struct Sasl {
    pub(super) mechanism: Mechanism,
    pub(super) user: Arc<str>,
    pub(super) password: Secret,
}

impl Sasl {
    /// Credentials for `mechanism`.
    #[must_use]
    pub fn new(
        mechanism: Mechanism,
        user: impl Into<Arc<str>>,
        password: impl Into<Arc<str>>,
    ) -> Self {
        Self {
            mechanism,
            user: user.into(),
            password: Secret(password.into()),
        }
    }

    /// PLAIN: the broker gets the password itself.
    #[must_use]
    pub fn plain(user: impl Into<Arc<str>>, password: impl Into<Arc<str>>) -> Self {
        Self::new(Mechanism::Plain, user, password)
    }

    /// SCRAM-SHA-256: the broker gets a proof, and gives one.
    #[must_use]
    pub fn scram_sha_256(user: impl Into<Arc<str>>, password: impl Into<Arc<str>>) -> Self {
        Self::new(Mechanism::ScramSha256, user, password)
    }

    /// SCRAM-SHA-512: the broker gets a proof, and gives one.
    #[must_use]
    pub fn scram_sha_512(user: impl Into<Arc<str>>, password: impl Into<Arc<str>>) -> Self {
        Self::new(Mechanism::ScramSha512, user, password)
    }

    /// The mechanism.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// The user.
    #[must_use]
    pub fn user(&self) -> &Arc<str> {
        &self.user
    }

    /// A new exchange.
    pub(crate) fn exchange(&self) -> Result<Exchange, &'static str> {
        let hash = match self.mechanism {
            Mechanism::Plain => {
                // No authorisation identity: nobody acts for somebody else.
                let message = format!("\0{}\0{}", self.user, self.password.0);
                return Ok(Exchange::Plain(message.into_bytes()));
            }
            Mechanism::ScramSha256 => Hash::Sha256,
            Mechanism::ScramSha512 => Hash::Sha512,
        };
        // Not from the seed: a nonce that can be guessed lets old proofs be used again.
        let mut nonce = [0_u8; 24];
        getrandom::fill(&mut nonce).map_err(|_| "the system gives no random numbers")?;
        let nonce = STANDARD_NO_PAD.encode(nonce);
        let scram = Scram::new(hash, &self.user, &self.password.0, nonce);
        Ok(Exchange::Scram(Box::new(scram)))
    }
}

impl fmt::Debug for Sasl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Sasl")
            .field("mechanism", &self.mechanism)
            .field("user", &self.user)
            .field("password", &self.password)
            .finish()
    }
}

/// What the connection does next.
#[derive(PartialEq, Eq)]
pub(crate) enum Step {
    /// Send this and hear what the broker says.
    Send(Vec<u8>),
    /// The client's side has nothing more to say or to check.
    Done,
    /// The broker refuses within the mechanism, with these words.
    Refused(String),
    /// The broker is not who it should be.
    Distrust(&'static str),
}

impl fmt::Debug for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // With PLAIN it has the password.
            Self::Send(_) => formatter.write_str("Send([hidden])"),
            Self::Done => formatter.write_str("Done"),
            Self::Refused(words) => write!(formatter, "Refused({words:?})"),
            Self::Distrust(reason) => write!(formatter, "Distrust({reason:?})"),
        }
    }
}

/// One exchange of one mechanism.
pub(crate) enum Exchange {
    Plain(Vec<u8>),
    Scram(Box<Scram>),
}

impl Exchange {
    /// The first message.
    pub(crate) fn begin(&mut self) -> Step {
        match self {
            Self::Plain(message) => Step::Send(std::mem::take(message)),
            Self::Scram(scram) => scram.begin().into(),
        }
    }

    /// Takes what the broker said.
    pub(crate) fn hear(&mut self, message: &[u8]) -> Step {
        match self {
            Self::Plain(_) if message.is_empty() => Step::Done,
            Self::Plain(_) => Step::Distrust("it answers PLAIN with a question"),
            Self::Scram(scram) => scram.hear(message).into(),
        }
    }
}

impl From<Command> for Step {
    fn from(command: Command) -> Self {
        match command {
            Command::Send(message) => Self::Send(message),
            Command::Finish => Self::Done,
            Command::Refused(words) => Self::Refused(words),
            Command::Distrust(reason) => Self::Distrust(reason),
        }
    }
}
