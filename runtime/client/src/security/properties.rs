//! Settings as Kafka's tools take them: properties files, and the JAAS line within them.
//!
//! Invariants: an error names the key and never has a password in it.
//! Never: evaluates anything; a JAAS line is read for user and password alone.

use std::sync::Arc;

use super::Security;
use super::sasl::Secret;
use crate::error::ConfigError;

impl Security {
    /// Reads the text of a properties file that has settings of security and nothing else.
    ///
    /// # Errors
    /// Names the setting that is none of security, or whose value makes no sense.
    pub fn from_properties(text: &str) -> Result<Self, ConfigError> {
        let mut security = Self::default();
        for (name, value) in properties(text) {
            if !security.set(&name, &value)? {
                return Err(ConfigError::Unusable {
                    setting: name,
                    reason: "is not a setting of security".to_owned(),
                });
            }
        }
        Ok(security)
    }
}

/// The names and values of a properties file as Java reads it: comments, continued lines, escapes.
#[must_use]
pub fn properties(text: &str) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut whole = line.to_owned();
        while ends_in_escape(&whole) {
            whole.pop();
            match lines.next() {
                Some(next) => whole.push_str(next.trim_start()),
                None => break,
            }
        }
        settings.push(pair(&whole));
    }
    settings
}

/// Whether the line goes on: an odd number of backslashes ends it.
fn ends_in_escape(line: &str) -> bool {
    let escapes = line.len() - line.trim_end_matches('\\').len();
    escapes % 2 == 1
}

/// Splits at the first `=`, `:` or blank that is not escaped.
fn pair(line: &str) -> (String, String) {
    let mut escaped = false;
    let end = line
        .char_indices()
        .find(|(_, c)| {
            let ends = !escaped && (matches!(c, '=' | ':') || c.is_whitespace());
            escaped = *c == '\\' && !escaped;
            ends
        })
        .map_or(line.len(), |(index, _)| index);
    let (name, rest) = line.split_at(end);
    let rest = rest.trim_start();
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start();
    (unescaped(name), unescaped(value))
}

fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            plain.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('t') => plain.push('\t'),
            Some('f') => plain.push('\u{c}'),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16).ok();
                plain.push(code.and_then(char::from_u32).unwrap_or('\u{fffd}'));
            }
            Some(other) => plain.push(other),
            None => {}
        }
    }
    plain
}

/// The login module of a JAAS line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Login {
    Plain,
    Scram,
}

impl Login {
    pub(super) fn is_scram(self) -> bool {
        self == Self::Scram
    }

    pub(super) fn module(self) -> &'static str {
        match self {
            Self::Plain => "PlainLoginModule",
            Self::Scram => "ScramLoginModule",
        }
    }

    /// Reads `<module> required username="…" password="…";`.
    pub(super) fn parse(line: &str) -> Result<(Self, Arc<str>, Secret), ConfigError> {
        let unusable = |reason: &str| ConfigError::Unusable {
            setting: "sasl.jaas.config".to_owned(),
            reason: reason.to_owned(),
        };
        let words = words(line).ok_or_else(|| unusable("a quotation does not end"))?;
        let mut words = words.into_iter();
        let module = words.next().unwrap_or_default();
        let login = [Self::Plain, Self::Scram]
            .into_iter()
            .find(|login| module.rsplit('.').next() == Some(login.module()))
            .ok_or_else(|| unusable("must begin with PlainLoginModule or ScramLoginModule"))?;
        if words.next().is_none() {
            return Err(unusable("must say `required` behind the login module"));
        }
        let (mut user, mut password) = (None, None);
        for word in words {
            match word.split_once('=') {
                Some(("username", value)) => user = Some(value.into()),
                Some(("password", value)) => password = Some(Secret(value.into())),
                // Not named: with a blank behind the `=` this may be a part of the password.
                Some(_) => return Err(unusable("has an option that is not known")),
                None => return Err(unusable("has a word that is not an option=\"value\"")),
            }
        }
        match (user, password) {
            (Some(user), Some(password)) => Ok((login, user, password)),
            _ => Err(unusable("must give username and password")),
        }
    }
}

/// Words apart by blanks, quotation marks taken off, up to the `;`.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => quoted = !quoted,
            '\\' if quoted => word.extend(chars.next()),
            ';' if !quoted => break,
            c if c.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    (!quoted).then_some(words)
}
