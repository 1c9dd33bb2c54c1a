//! SCRAM (RFC 5802, 7677) as a pure machine: what the broker said in, what to say out.
//!
//! ```text
//!         begin            server-first             server-final, right signature
//!  Ready -------> FirstSent -----------> FinalSent ------------------------------> Done
//!                     |                      |
//!                     +-- error, nonsense ---+--> Failed
//! ```
//!
//! Invariants: the password leaves as a proof and in no other form; *Done* is reached by the
//! server's own proof alone, compared in constant time; the work that a server can ask for is
//! bounded.
//! Never: I/O, clocks, randomness (the nonce is handed in); authorisation as somebody else.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha512};

/// Fewer iterations make a stolen proof cheap to guess passwords from.
const ITERATIONS_MIN: u32 = 4096;
/// More would let a server keep this client's processor busy.
const ITERATIONS_MAX: u32 = 1_000_000;
/// More than any honest message takes.
const MESSAGE_BYTES_MAX: usize = 4096;

/// The header that says: no channel binding, nobody else's name.
const GS2_HEADER: &str = "n,,";

/// The hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hash {
    Sha256,
    Sha512,
}

/// Where the exchange stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing said yet.
    Ready,
    /// User and nonce are sent.
    FirstSent,
    /// The proof is sent.
    FinalSent,
    /// Both sides have proven that they know the password.
    Done,
    /// Nothing will be said again.
    Failed,
}

/// What happened, by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The exchange begins.
    Begin,
    /// A message that gives nonce, salt and iterations.
    ServerFirst,
    /// A message that gives the server's signature.
    ServerFinal,
    /// A message that gives an error.
    ServerError,
    /// Anything else.
    Nonsense,
}

/// What follows from an event, as far as its contents hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Say who we are.
    SendFirst,
    /// Check nonce, salt and iterations, then send the proof.
    SendProof,
    /// Check the signature, then it is done.
    Verify,
    /// The server has refused.
    Refused,
    /// The server is out of order.
    OutOfOrder,
}

/// The whole table; a test goes through its cells.
pub(crate) fn transition(state: State, event: Event) -> (State, Action) {
    match (state, event) {
        (State::Ready, Event::Begin) => (State::FirstSent, Action::SendFirst),
        (State::FirstSent, Event::ServerFirst) => (State::FinalSent, Action::SendProof),
        (State::FinalSent, Event::ServerFinal) => (State::Done, Action::Verify),
        (State::FirstSent | State::FinalSent, Event::ServerError) => {
            (State::Failed, Action::Refused)
        }
        _ => (State::Failed, Action::OutOfOrder),
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Send this.
    Send(Vec<u8>),
    /// The exchange has succeeded.
    Finish,
    /// The server refuses, with these words.
    Refused(String),
    /// The server is not who it should be.
    Distrust(&'static str),
}

/// The machine.
pub(crate) struct Scram {
    state: State,
    hash: Hash,
    user: String,
    password: Vec<u8>,
    nonce: String,
    first_bare: String,
    /// Key and text of the server's signature, once the proof is sent.
    expected: Option<(Vec<u8>, String)>,
}

impl Scram {
    /// The nonce has to be unpredictable, printable and without a comma.
    pub(crate) fn new(hash: Hash, user: &str, password: &str, nonce: String) -> Self {
        Self {
            state: State::Ready,
            hash,
            user: user.replace('=', "=3D").replace(',', "=2C"),
            password: password.as_bytes().to_vec(),
            nonce,
            first_bare: String::new(),
            expected: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// The client's first message.
    pub(crate) fn begin(&mut self) -> Command {
        self.on(Event::Begin, "")
    }

    /// Takes what the server said.
    pub(crate) fn hear(&mut self, message: &[u8]) -> Command {
        let text = Some(message)
            .filter(|message| message.len() <= MESSAGE_BYTES_MAX)
            .and_then(|message| std::str::from_utf8(message).ok())
            .unwrap_or_default();
        let event = match text.get(..2) {
            Some("r=") => Event::ServerFirst,
            Some("v=") => Event::ServerFinal,
            Some("e=") => Event::ServerError,
            _ => Event::Nonsense,
        };
        self.on(event, text)
    }

    fn on(&mut self, event: Event, text: &str) -> Command {
        let (state, action) = transition(self.state, event);
        self.state = state;
        let command = match action {
            Action::SendFirst => Ok(Command::Send(self.first())),
            Action::SendProof => self.proof(text).map(Command::Send),
            Action::Verify => self.verify(text).map(|()| Command::Finish),
            Action::Refused => Ok(Command::Refused(text.chars().skip(2).collect())),
            Action::OutOfOrder => Err("its message does not belong here"),
        };
        command.unwrap_or_else(|reason| {
            self.state = State::Failed;
            Command::Distrust(reason)
        })
    }

    fn first(&mut self) -> Vec<u8> {
        self.first_bare = format!("n={},r={}", self.user, self.nonce);
        format!("{GS2_HEADER}{}", self.first_bare).into_bytes()
    }

    fn proof(&mut self, server_first: &str) -> Result<Vec<u8>, &'static str> {
        let challenge = Challenge::parse(server_first)?;
        let extended = challenge
            .nonce
            .strip_prefix(&self.nonce)
            .is_some_and(|added| !added.is_empty());
        if !extended {
            return Err("its nonce does not continue ours");
        }
        if challenge.iterations < ITERATIONS_MIN {
            return Err("it asks for fewer than 4096 iterations");
        }
        if challenge.iterations > ITERATIONS_MAX {
            return Err("it asks for more than 1000000 iterations");
        }
        let without_proof = format!("c={},r={}", STANDARD.encode(GS2_HEADER), challenge.nonce);
        let auth_message = format!("{},{server_first},{without_proof}", self.first_bare);
        let salted = self
            .hash
            .salted(&self.password, &challenge.salt, challenge.iterations);
        let client_key = self.hash.hmac(&salted, b"Client Key");
        let stored_key = self.hash.digest(&client_key);
        let signature = self.hash.hmac(&stored_key, auth_message.as_bytes());
        let proof: Vec<u8> = client_key
            .iter()
            .zip(&signature)
            .map(|(key, signature)| key ^ signature)
            .collect();
        let server_key = self.hash.hmac(&salted, b"Server Key");
        self.expected = Some((server_key, auth_message));
        Ok(format!("{without_proof},p={}", STANDARD.encode(proof)).into_bytes())
    }

    fn verify(&self, server_final: &str) -> Result<(), &'static str> {
        const WRONG: &str = "its signature is wrong, so it does not know the password";
        let (server_key, auth_message) = self.expected.as_ref().ok_or(WRONG)?;
        let signature = server_final.split(',').next().unwrap_or_default();
        let signature = signature
            .strip_prefix("v=")
            .and_then(|encoded| STANDARD.decode(encoded).ok())
            .ok_or("its signature is not base64")?;
        if self
            .hash
            .hmac_is(server_key, auth_message.as_bytes(), &signature)
        {
            Ok(())
        } else {
            Err(WRONG)
        }
    }
}

/// What server-first holds.
struct Challenge<'a> {
    nonce: &'a str,
    salt: Vec<u8>,
    iterations: u32,
}

impl<'a> Challenge<'a> {
    /// `r=`, `s=` and `i=` in this order; extensions may follow, a mandatory one (`m=`) stands
    /// first and is refused as nonsense.
    fn parse(text: &'a str) -> Result<Self, &'static str> {
        const FORM: &str = "its first message is not one of SCRAM";
        let mut parts = text.split(',');
        let mut value = |name: &str| parts.next().and_then(|part| part.strip_prefix(name));
        let (nonce, salt, iterations) = (value("r="), value("s="), value("i="));
        let nonce = nonce.ok_or(FORM)?;
        if nonce.is_empty() || !nonce.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(FORM);
        }
        let salt = STANDARD.decode(salt.ok_or(FORM)?).map_err(|_| FORM)?;
        let iterations = iterations.ok_or(FORM)?;
        if salt.is_empty() || !iterations.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(FORM);
        }
        Ok(Self {
            nonce,
            salt,
            iterations: iterations.parse().map_err(|_| FORM)?,
        })
    }
}

/// The code authentication of `data` under `key`, ready to be finished or compared.
fn keyed<M: Mac + KeyInit>(key: &[u8], data: &[u8]) -> Option<M> {
    // HMAC takes keys of every length.
    <M as KeyInit>::new_from_slice(key)
        .ok()
        .map(|mac| mac.chain_update(data))
}

impl Hash {
    fn digest(self, data: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(data).to_vec(),
            Self::Sha512 => Sha512::digest(data).to_vec(),
        }
    }

    fn hmac(self, key: &[u8], data: &[u8]) -> Vec<u8> {
        let code = match self {
            Self::Sha256 => {
                keyed::<Hmac<Sha256>>(key, data).map(|mac| mac.finalize().into_bytes().to_vec())
            }
            Self::Sha512 => {
                keyed::<Hmac<Sha512>>(key, data).map(|mac| mac.finalize().into_bytes().to_vec())
            }
        };
        code.unwrap_or_default()
    }

    /// Compares in a time that does not depend on where they differ.
    fn hmac_is(self, key: &[u8], data: &[u8], code: &[u8]) -> bool {
        match self {
            Self::Sha256 => {
                keyed::<Hmac<Sha256>>(key, data).is_some_and(|mac| mac.verify_slice(code).is_ok())
            }
            Self::Sha512 => {
                keyed::<Hmac<Sha512>>(key, data).is_some_and(|mac| mac.verify_slice(code).is_ok())
            }
        }
    }

    fn salted(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        match self {
            Self::Sha256 => {
                pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(password, salt, iterations).to_vec()
            }
            Self::Sha512 => {
                pbkdf2::pbkdf2_hmac_array::<Sha512, 64>(password, salt, iterations).to_vec()
            }
        }
    }
}

#[cfg(test)]
#[path = "scram_tests.rs"]
mod tests;
