//! Authentication against brokers that ask for it, renew it, refuse it or lie.

use std::io;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use millstream_protocol::messages::api_versions::ApiVersion;
use millstream_protocol::messages::{ApiVersionsResponse, MetadataRequest, MetadataResponse};
use millstream_protocol::{Decoder, Frame, Message, decode_request_header, encode_response};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;
use crate::cluster::Cluster;
use crate::config::ClientConfig;
use crate::security::Security;
use crate::transport::{FrameConnection, Transport};

/// How the broker behaves.
#[derive(Clone, Copy, Debug, Default)]
struct Manners {
    handshake: ErrorCode,
    /// The answer to the proof of this number (from 0) and later ones.
    refuses_from: Option<(usize, ErrorCode)>,
    says: &'static [u8],
    lifetime_ms: i64,
    /// How long each answer of an exchange takes.
    slow: Duration,
}

#[derive(Debug)]
struct SaslBroker {
    manners: Manners,
    proofs: Mutex<usize>,
    heard: Mutex<Vec<(ApiKey, Instant)>>,
}

impl SaslBroker {
    fn new(manners: Manners) -> Arc<Self> {
        Arc::new(Self {
            manners,
            proofs: Mutex::default(),
            heard: Mutex::default(),
        })
    }

    fn heard(&self) -> Vec<(ApiKey, Instant)> {
        self.heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn apis(&self) -> Vec<ApiKey> {
        self.heard().into_iter().map(|(api, _)| api).collect()
    }

    async fn answer(&self, api: ApiKey) -> (Frame, bool) {
        self.heard.lock().unwrap().push((api, Instant::now()));
        fn frame<M: Message>(answer: &M, api: ApiKey) -> Frame {
            encode_response(api, *api.versions().end(), 0, answer).unwrap()
        }
        match api {
            ApiKey::ApiVersions => {
                let api_keys = ApiKey::ALL.iter().map(|api| ApiVersion {
                    api_key: *api as i16,
                    min_version: *api.versions().start(),
                    max_version: *api.versions().end(),
                });
                let answer = ApiVersionsResponse {
                    api_keys: api_keys.collect(),
                    ..Default::default()
                };
                (frame(&answer, api), true)
            }
            ApiKey::SaslHandshake => {
                tokio::time::sleep(self.manners.slow).await;
                let answer = SaslHandshakeResponse {
                    error_code: self.manners.handshake,
                    mechanisms: vec!["OAUTHBEARER".to_owned()],
                };
                (frame(&answer, api), true)
            }
            ApiKey::SaslAuthenticate => {
                tokio::time::sleep(self.manners.slow).await;
                let number = {
                    let mut proofs = self.proofs.lock().unwrap();
                    *proofs += 1;
                    *proofs - 1
                };
                let refusal = self.manners.refuses_from;
                let refusal = refusal.filter(|(from, _)| number >= *from);
                let answer = SaslAuthenticateResponse {
                    error_code: refusal.map_or(ErrorCode::NONE, |(_, code)| code),
                    error_message: refusal.map(|_| "no such user\nhere".to_owned()),
                    auth_bytes: SecretBytes(self.manners.says.into()),
                    session_lifetime_ms: self.manners.lifetime_ms,
                };
                (frame(&answer, api), refusal.is_none())
            }
            _ => (frame(&MetadataResponse::default(), ApiKey::Metadata), true),
        }
    }

    async fn serve(self: Arc<Self>, mut from: mpsc::Receiver<Frame>, to: mpsc::Sender<Frame>) {
        while let Some(request) = from.recv().await {
            let header = decode_request_header(&mut Decoder::new(request)).unwrap();
            let (answer, goes_on) = self.answer(ApiKey::from_i16(header.api_key).unwrap()).await;
            let mut bytes = answer.into_contiguous().to_vec();
            bytes[..4].copy_from_slice(&header.correlation_id.to_be_bytes());
            if to.send(Frame::from_bytes(bytes.into())).await.is_err() || !goes_on {
                return;
            }
        }
    }
}

#[derive(Debug)]
struct Wire(Arc<SaslBroker>);

#[async_trait]
impl Transport for Wire {
    async fn connect(&self, _: &BrokerAddress) -> io::Result<FrameConnection> {
        let (outgoing, requests) = mpsc::channel(16);
        let (answers, incoming) = mpsc::channel(16);
        tokio::spawn(Arc::clone(&self.0).serve(requests, answers));
        Ok(FrameConnection::new(outgoing, incoming))
    }

    fn bootstrap(&self) -> Vec<BrokerAddress> {
        vec![BrokerAddress::new("sasl", 9094)]
    }
}

fn client(broker: &Arc<SaslBroker>, sasl: Sasl) -> Cluster {
    let security = Security::sasl_plaintext(sasl);
    let config = ClientConfig {
        security,
        ..ClientConfig::default()
    };
    Cluster::new(Arc::new(Wire(Arc::clone(broker))), config)
}

async fn ask(cluster: &Cluster) -> Result<MetadataResponse, RequestError> {
    let node = cluster.any_node().unwrap();
    let patience = Duration::from_secs(30);
    cluster
        .request(node, MetadataRequest::default(), patience)
        .await
}

async fn refusal(manners: Manners, sasl: Sasl) -> Arc<SecurityError> {
    let broker = SaslBroker::new(manners);
    let cluster = client(&broker, sasl);
    let started = Instant::now();
    let error = ask(&cluster).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(1), "at once");
    assert!(!error.is_retriable() && !error.may_have_been_sent());
    assert!(
        !broker.apis().contains(&ApiKey::Metadata),
        "nothing is asked of a broker that is not trusted"
    );
    assert!(!error.to_string().contains("wordpass"), "{error}");
    Arc::clone(error.security().unwrap())
}

#[tokio::test(start_paused = true)]
async fn y1_nothing_is_sent_before_the_broker_believes_the_client() {
    let broker = SaslBroker::new(Manners::default());
    let cluster = client(&broker, Sasl::plain("u", "wordpass"));
    ask(&cluster).await.unwrap();
    let expected = [
        ApiKey::ApiVersions,
        ApiKey::SaslHandshake,
        ApiKey::SaslAuthenticate,
        ApiKey::Metadata,
    ];
    assert_eq!(broker.apis(), expected);
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_fail_the_call_at_once_with_user_broker_and_words() {
    let manners = Manners {
        refuses_from: Some((0, ErrorCode::SASL_AUTHENTICATION_FAILED)),
        ..Manners::default()
    };
    let error = refusal(manners, Sasl::plain("orders", "wordpass")).await;
    assert!(
        matches!(&*error, SecurityError::AuthenticationFailed { code, .. }
        if *code == ErrorCode::SASL_AUTHENTICATION_FAILED)
    );
    let text = error.to_string();
    for part in [
        "orders",
        "PLAIN",
        "sasl:9094",
        "no such user here",
        "sasl.password",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_mechanism_that_is_not_enabled_is_told_with_those_that_are() {
    let manners = Manners {
        handshake: ErrorCode::UNSUPPORTED_SASL_MECHANISM,
        ..Manners::default()
    };
    let error = refusal(manners, Sasl::scram_sha_512("u", "wordpass")).await;
    assert!(
        matches!(&*error, SecurityError::MechanismNotOffered { offered, .. }
        if offered == &["OAUTHBEARER"])
    );
    let manners = Manners {
        handshake: ErrorCode::ILLEGAL_SASL_STATE,
        ..Manners::default()
    };
    let error = refusal(manners, Sasl::scram_sha_512("u", "wordpass")).await;
    assert!(matches!(&*error, SecurityError::NoSasl { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn y2_a_broker_that_proves_nothing_is_not_believed() {
    for says in [&b""[..], b"v=AAAA", b"r=x,s=AAAA,i=4096", b"\xff\xff"] {
        let manners = Manners {
            says,
            ..Manners::default()
        };
        let error = refusal(manners, Sasl::scram_sha_256("u", "wordpass")).await;
        assert!(
            matches!(&*error, SecurityError::BrokerNotProven { .. }),
            "{error}"
        );
    }
    let manners = Manners {
        says: b"e=unknown-user",
        ..Manners::default()
    };
    let error = refusal(manners, Sasl::scram_sha_256("u", "wordpass")).await;
    assert!(error.to_string().contains("unknown-user"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_session_is_renewed_on_its_connection_and_nothing_is_sent_in_between() {
    let broker = SaslBroker::new(Manners {
        lifetime_ms: 60_000,
        slow: Duration::from_secs(2),
        ..Manners::default()
    });
    let cluster = client(&broker, Sasl::plain("u", "wordpass"));
    let started = Instant::now();
    // Asks all the time, also while the renewal is under way.
    while started.elapsed() < Duration::from_secs(200) {
        let asked = (0..5).map(|_| ask(&cluster));
        for answer in futures::future::join_all(asked).await {
            answer.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let heard = broker.heard();
    let count = |wanted| heard.iter().filter(|(api, _)| *api == wanted).count();
    assert_eq!(count(ApiKey::ApiVersions), 1, "one connection");
    assert_eq!(count(ApiKey::SaslHandshake), 4);
    for pair in heard.windows(2) {
        if pair[0].0 == ApiKey::SaslHandshake {
            assert_eq!(pair[1].0, ApiKey::SaslAuthenticate, "nothing in between");
        }
    }
    let at = |wanted| {
        heard
            .iter()
            .filter(move |(api, _)| *api == wanted)
            .map(|(_, at)| *at)
    };
    let proofs: Vec<Instant> = at(ApiKey::SaslAuthenticate).collect();
    let renewals = at(ApiKey::SaslHandshake).skip(1);
    for (proof, renewal) in proofs.into_iter().zip(renewals) {
        let after = renewal - (proof + Duration::from_secs(2));
        let expected = Duration::from_secs(51)..=Duration::from_secs(57);
        assert!(expected.contains(&after), "{after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_after_the_renewal_was_due_waits_for_it_even_if_that_is_late() {
    let broker = SaslBroker::new(Manners {
        lifetime_ms: 60_000,
        ..Manners::default()
    });
    let cluster = client(&broker, Sasl::plain("u", "wordpass"));
    ask(&cluster).await.unwrap();
    // The time is over, and nobody but this test has had a turn since.
    let mut over = Box::pin(tokio::time::advance(Duration::from_secs(58)));
    assert!(futures::poll!(over.as_mut()).is_pending());
    ask(&cluster).await.unwrap();
    let renewed = [
        ApiKey::SaslHandshake,
        ApiKey::SaslAuthenticate,
        ApiKey::Metadata,
    ];
    assert_eq!(broker.apis()[4..], renewed);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_refused_ends_the_connection_and_the_next_call() {
    let broker = SaslBroker::new(Manners {
        lifetime_ms: 60_000,
        refuses_from: Some((1, ErrorCode::SASL_AUTHENTICATION_FAILED)),
        slow: Duration::from_secs(2),
        ..Manners::default()
    });
    let cluster = client(&broker, Sasl::plain("u", "wordpass"));
    ask(&cluster).await.unwrap();
    let renews = |broker: &SaslBroker| {
        let apis = broker.apis();
        apis.iter()
            .filter(|api| **api == ApiKey::SaslHandshake)
            .count()
            > 1
    };
    while !renews(&broker) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let waiting = ask(&cluster).await.unwrap_err();
    assert!(waiting.is_retriable(), "{waiting}");
    assert!(!waiting.may_have_been_sent(), "it was held: {waiting}");
    let error = ask(&cluster).await.unwrap_err();
    assert!(error.security().is_some(), "{error}");
}

#[test]
fn a_renewal_is_never_within_a_second_of_the_last() {
    for random in [0.0, 0.5, 1.0, 7.0] {
        assert_eq!(
            renewal_pause(Duration::from_millis(900), random),
            RENEWAL_PAUSE_MIN
        );
        let hour = renewal_pause(Duration::from_secs(3600), random).as_secs_f64() / 3600.0;
        assert!((0.85..=0.951).contains(&hour), "{hour}");
        let short = renewal_pause(Duration::from_secs(8), random);
        assert!(short >= Duration::from_millis(6800) && short <= Duration::from_secs(7));
    }
}
