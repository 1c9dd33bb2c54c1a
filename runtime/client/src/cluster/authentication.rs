//! SASL on a connection: before its first request, and again before the broker's trust ends.
//!
//! Invariants: no other request is sent between the first and the last message of an exchange; a
//! session that the broker limits is renewed on the same connection, at 85 to 95 % of its time and
//! a second before its end, or the connection is closed; what is sent later waits for that, even
//! if the renewal itself begins late.
//! Never: tries the same credentials again by itself.

use std::sync::Arc;
use std::time::Duration;

use millstream_protocol::messages::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};
use millstream_protocol::{ApiKey, ErrorCode, Request, SecretBytes};

use tokio::time::Instant;

use super::connection::Shared;
use super::establish::Refusal;
use super::versions::BrokerVersions;
use crate::error::RequestError;
use crate::security::{Sasl, SecurityError, Step, clipped};
use crate::transport::BrokerAddress;

/// How long a renewal may wait behind requests that the broker answers late, a join above all.
/// Requests that wait behind the renewal have their own, shorter patience.
const RENEWAL_PATIENCE: Duration = Duration::from_secs(3600);
/// Brokers take no renewal within a second of the last proof.
const RENEWAL_PAUSE_MIN: Duration = Duration::from_millis(1100);
/// For what was sent just before a renewal and is still on its way, or stands behind another
/// request: a broker that reads it after the session's end closes the connection.
const WAY_MAX: Duration = Duration::from_secs(1);

/// Whose proof a connection begins with, and to whom.
#[derive(Clone, Debug)]
pub(super) struct Authentication {
    pub(super) sasl: Arc<Sasl>,
    pub(super) broker: BrokerAddress,
    /// In 0.0..1.0: spreads the renewals of many connections.
    pub(super) random: f64,
}

impl Authentication {
    /// Proves who we are, and has the broker prove itself where the mechanism does. Answers for how
    /// long that holds; zero for as long as the connection.
    pub(super) async fn prove(
        &self,
        shared: &Arc<Shared>,
        versions: &BrokerVersions,
        timeout: Duration,
    ) -> Result<Duration, Refusal> {
        let handshake = SaslHandshakeRequest {
            mechanism: self.sasl.mechanism().name().to_owned(),
        };
        let version = self.version(versions, ApiKey::SaslHandshake, 1)?;
        let answer = ask(shared, version, &handshake, timeout).await?;
        self.agreed(answer)?;
        let version = self.version(versions, ApiKey::SaslAuthenticate, 0)?;
        let mut exchange = self
            .sasl
            .exchange()
            .map_err(|reason| Refusal::Passing(reason.to_owned()))?;
        let mut step = exchange.begin();
        let mut lifetime_ms = 0;
        loop {
            match step {
                Step::Send(message) => {
                    let request = SaslAuthenticateRequest {
                        auth_bytes: SecretBytes(message.into()),
                    };
                    let answer = ask(shared, version, &request, timeout).await?;
                    lifetime_ms = answer.session_lifetime_ms;
                    let said = self.believed(answer)?;
                    // A proof may take a second of computing, which others do not wait for.
                    let heard = tokio::task::spawn_blocking(move || {
                        let step = exchange.hear(&said);
                        (exchange, step)
                    });
                    (exchange, step) = heard
                        .await
                        .map_err(|error| Refusal::Passing(error.to_string()))?;
                }
                Step::Done => {
                    let lifetime_ms = u64::try_from(lifetime_ms).unwrap_or(0);
                    tracing::debug!(
                        broker = %self.broker, user = %self.sasl.user(), lifetime_ms, "authenticated"
                    );
                    return Ok(Duration::from_millis(lifetime_ms));
                }
                Step::Refused(words) => {
                    let code = ErrorCode::SASL_AUTHENTICATION_FAILED;
                    return Err(self.failed(code, &words).into());
                }
                Step::Distrust(reason) => {
                    return Err(SecurityError::BrokerNotProven {
                        mechanism: self.sasl.mechanism(),
                        user: Arc::clone(self.sasl.user()),
                        broker: self.broker.clone(),
                        reason: reason.into(),
                    }
                    .into());
                }
            }
        }
    }

    fn version(
        &self,
        versions: &BrokerVersions,
        api: ApiKey,
        least: i16,
    ) -> Result<i16, SecurityError> {
        let version = versions.negotiate(api, i16::MAX).ok();
        version
            .filter(|version| *version >= least)
            .ok_or_else(|| SecurityError::NoSasl {
                broker: self.broker.clone(),
                reason: format!("it does not serve {api}").into(),
            })
    }

    fn agreed(&self, answer: SaslHandshakeResponse) -> Result<(), SecurityError> {
        let broker = self.broker.clone();
        match answer.error_code {
            code if code.is_ok() => Ok(()),
            ErrorCode::UNSUPPORTED_SASL_MECHANISM => {
                const OFFERS_MAX: usize = 16;
                let offered = answer.mechanisms.iter().take(OFFERS_MAX);
                Err(SecurityError::MechanismNotOffered {
                    mechanism: self.sasl.mechanism(),
                    broker,
                    offered: offered.map(|name| clipped(name).to_string()).collect(),
                })
            }
            code => Err(SecurityError::NoSasl {
                broker,
                reason: code.to_string().into(),
            }),
        }
    }

    /// What the broker says within the mechanism, unless it has refused.
    fn believed(&self, answer: SaslAuthenticateResponse) -> Result<bytes::Bytes, SecurityError> {
        if answer.error_code.is_ok() {
            return Ok(answer.auth_bytes.0);
        }
        let words = answer.error_message.unwrap_or_default();
        Err(self.failed(answer.error_code, &words))
    }

    fn failed(&self, code: ErrorCode, words: &str) -> SecurityError {
        SecurityError::AuthenticationFailed {
            mechanism: self.sasl.mechanism(),
            user: Arc::clone(self.sasl.user()),
            broker: self.broker.clone(),
            code,
            message: clipped(words),
        }
    }

    /// Renews the session as long as the connection holds and the broker limits it.
    pub(super) async fn keep(
        self,
        shared: Arc<Shared>,
        versions: BrokerVersions,
        mut lifetime: Duration,
    ) {
        while !lifetime.is_zero() {
            let due = Instant::now() + renewal_pause(lifetime, self.random);
            shared.hold_from(due);
            tokio::time::sleep_until(due).await;
            shared.hold();
            match self.prove(&shared, &versions, RENEWAL_PATIENCE).await {
                Ok(next) => lifetime = next,
                Err(Refusal::Passing(reason)) => return shared.close(&reason),
                Err(Refusal::Lasting(error)) => {
                    tracing::warn!(%error, "the broker does not believe this client any more");
                    return shared.close(&error.to_string());
                }
            }
            shared.release();
        }
    }
}

/// From one proof to the next.
fn renewal_pause(lifetime: Duration, random: f64) -> Duration {
    lifetime
        .mul_f64(0.85 + 0.1 * random.clamp(0.0, 1.0))
        .min(lifetime.saturating_sub(WAY_MAX))
        .max(RENEWAL_PAUSE_MIN)
}

async fn ask<R: Request>(
    shared: &Arc<Shared>,
    version: i16,
    request: &R,
    timeout: Duration,
) -> Result<R::Response, RequestError> {
    shared
        .start_ahead(version, request)?
        .response::<R>(timeout)
        .await
}

#[cfg(test)]
#[path = "authentication_tests.rs"]
mod tests;
