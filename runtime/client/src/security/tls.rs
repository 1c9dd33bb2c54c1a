//! TLS of a client's connections, by rustls with the feature `tls`.
//!
//! Invariants: a broker's certificate is always checked against the trusted authorities, and
//! against the host's name unless that was switched off by its setting.
//! Never: falls back to less, or installs anything for the whole process.

#[cfg(not(feature = "tls"))]
pub use without::Tls;

#[cfg(feature = "tls")]
pub use within::Tls;

/// A build without TLS.
#[cfg(not(feature = "tls"))]
mod without {
    use crate::error::ConfigError;
    use crate::security::SecurityProtocol;
    use crate::security::settings::Settings;

    /// What a transport needs for TLS. There is none: the feature `tls` is off.
    #[derive(Debug)]
    pub enum Tls {}

    impl Tls {
        pub(in crate::security) fn new(
            _settings: &Settings,
            protocol: SecurityProtocol,
        ) -> Result<Self, ConfigError> {
            Err(ConfigError::Unusable {
                setting: format!("security.protocol={protocol}"),
                reason: "this build has no TLS; build millstream with the feature `tls`".to_owned(),
            })
        }
    }
}

#[cfg(feature = "tls")]
mod within {
    use std::fmt;
    use std::io;
    use std::sync::Arc;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::CryptoProvider;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
    use rustls::{
        AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore,
        SignatureScheme,
    };
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;

    use crate::error::ConfigError;
    use crate::security::settings::{Pem, Settings};
    use crate::security::validity::Expiry;
    use crate::security::{SecurityError, SecurityProtocol};
    use crate::transport::BrokerAddress;

    /// What a transport needs for TLS: authorities, the client's certificate, the name check.
    pub struct Tls {
        config: Arc<ClientConfig>,
        /// Of the client's certificate.
        expiry: Option<Expiry>,
    }

    impl fmt::Debug for Tls {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("Tls")
        }
    }

    fn unusable(setting: impl Into<String>, reason: impl fmt::Display) -> ConfigError {
        ConfigError::Unusable {
            setting: setting.into(),
            reason: reason.to_string(),
        }
    }

    impl Tls {
        pub(in crate::security) fn new(
            settings: &Settings,
            protocol: SecurityProtocol,
        ) -> Result<Self, ConfigError> {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let roots = Arc::new(roots(settings.trust.as_ref())?);
            let verifier = WebPkiServerVerifier::builder_with_provider(
                Arc::clone(&roots),
                Arc::clone(&provider),
            );
            let verifier = verifier
                .build()
                .map_err(|error| unusable("ssl.truststore", error))?;
            let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_safe_default_protocol_versions()
                .map_err(|error| unusable(format!("security.protocol={protocol}"), error))?;
            let builder = if settings.any_host.unwrap_or_default() {
                let any_host = AnyHost {
                    roots,
                    provider,
                    inner: verifier,
                };
                builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(any_host))
            } else {
                builder.with_webpki_verifier(verifier)
            };
            let own = own(settings)?;
            let first = own.as_ref().and_then(|(chain, _)| chain.first());
            let expiry = first.and_then(|certificate| Expiry::of(certificate));
            let config = match own {
                None => builder.with_no_client_auth(),
                Some((chain, key)) => builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| unusable("ssl.keystore", error))?,
            };
            Ok(Self {
                config: Arc::new(config),
                expiry,
            })
        }

        /// Does the handshake. Errors that will come again are [`SecurityError`]s within.
        pub(crate) async fn connect(
            &self,
            address: &BrokerAddress,
            stream: TcpStream,
        ) -> io::Result<TlsStream<TcpStream>> {
            let name = ServerName::try_from(address.host.clone()).map_err(|error| {
                io::Error::other(SecurityError::Tls {
                    broker: address.clone(),
                    reason: error.to_string().into(),
                    next_step: "give the broker's DNS name or address",
                })
            })?;
            let connector = TlsConnector::from(Arc::clone(&self.config));
            connector.connect(name, stream).await.map_err(|error| {
                match self.diagnosis()(address, &error, Phase::Handshake) {
                    Some(diagnosis) => io::Error::other(diagnosis),
                    None => io::Error::new(
                        error.kind(),
                        format!("{error} during the TLS handshake; does the listener speak TLS?"),
                    ),
                }
            })
        }
    }

    impl Tls {
        /// What is behind an error of a TLS connection, if it is one of TLS.
        pub(crate) fn diagnosis(
            &self,
        ) -> impl Fn(&BrokerAddress, &io::Error, Phase) -> Option<SecurityError> + Send + 'static
        {
            let expiry = self.expiry.clone();
            move |address, error, phase| diagnose(address, error, phase, expiry.as_ref())
        }
    }

    /// When TLS failed.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Phase {
        Handshake,
        /// In TLS 1.3 a broker that does not like the client's certificate says so here.
        Established,
    }

    fn diagnose(
        address: &BrokerAddress,
        error: &io::Error,
        phase: Phase,
        expiry: Option<&Expiry>,
    ) -> Option<SecurityError> {
        use AlertDescription as Alert;
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        let next_step = match error {
            rustls::Error::InvalidCertificate(invalid) => certificate_advice(invalid),
            rustls::Error::AlertReceived(
                Alert::CertificateRequired
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied,
            ) => {
                if let Some(expiry) = expiry.filter(|end| end.is_over(UnixTime::now().as_secs())) {
                    return Some(SecurityError::CertificateExpired {
                        broker: address.clone(),
                        expired: expiry.day().into(),
                        reason: error.to_string().into(),
                    });
                }
                "the broker asks for a certificate of the client and does not take this one (or \
                 none): set ssl.keystore.location, or ssl.keystore.certificate.chain and \
                 ssl.keystore.key, to one that the broker trusts"
            }
            _ if phase == Phase::Established => return None,
            rustls::Error::InvalidMessage(_) => {
                "the listener does not speak TLS: set \
                 security.protocol to what it speaks"
            }
            _ => "client and listener have no TLS in common: look at the broker's ssl settings",
        };
        Some(SecurityError::Tls {
            broker: address.clone(),
            reason: error.to_string().into(),
            next_step,
        })
    }

    fn certificate_advice(invalid: &CertificateError) -> &'static str {
        use CertificateError as Invalid;
        match invalid {
            Invalid::UnknownIssuer => {
                "set ssl.truststore.location (or .certificates) to the authority that signed the \
                 broker's certificate"
            }
            Invalid::Expired | Invalid::ExpiredContext { .. } => {
                "the broker's certificate has expired (or this machine's clock is wrong): renew it"
            }
            Invalid::NotValidYet | Invalid::NotValidYetContext { .. } => {
                "the broker's certificate is not valid yet: look at the clocks of both machines"
            }
            Invalid::NotValidForName | Invalid::NotValidForNameContext { .. } => {
                "connect to a name that is in the broker's certificate; only if whoever holds a \
                 certificate of your authority is trusted, set \
                 ssl.endpoint.identification.algorithm to nothing"
            }
            _ => "mend the broker's certificate",
        }
    }

    /// The text of a setting.
    fn read(pem: &Pem, setting: &str) -> Result<Arc<[u8]>, ConfigError> {
        let (setting, text) = match pem {
            Pem::Text(text) => (setting.to_owned(), Arc::clone(text)),
            Pem::File(path) => {
                let setting = format!("{setting}={}", path.display());
                match std::fs::read(path) {
                    Ok(text) => (setting, text.into()),
                    Err(error) => return Err(unusable(setting, error)),
                }
            }
        };
        if text.windows(11).any(|window| window == b"-----BEGIN ") {
            return Ok(text);
        }
        const REASON: &str = "is not PEM; JKS and PKCS12 stores are not read: export certificates \
                              with `keytool -exportcert -rfc`, keys with `openssl pkcs12 -nodes`";
        Err(unusable(setting, REASON))
    }

    fn roots(trust: Option<&Pem>) -> Result<RootCertStore, ConfigError> {
        let mut roots = RootCertStore::empty();
        let Some(pem) = trust else {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let reason = "is not set, and this machine has no trusted authorities of its own";
                return Err(unusable("ssl.truststore.location", reason));
            }
            return Ok(roots);
        };
        for certificate in certificates("ssl.truststore", &read(pem, "ssl.truststore")?)? {
            roots
                .add(certificate)
                .map_err(|error| unusable("ssl.truststore", error))?;
        }
        Ok(roots)
    }

    type Own = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

    /// The client's own certificate and key.
    fn own(settings: &Settings) -> Result<Option<Own>, ConfigError> {
        const CHAIN: &str = "ssl.keystore.certificate.chain";
        const KEY: &str = "ssl.keystore.key";
        const BOTH: &str = "ssl.keystore.location";
        let ((chain_setting, chain), (key_setting, key)) =
            match (&settings.keystore, &settings.chain, &settings.key) {
                (None, None, None) => return Ok(None),
                (Some(pem), None, None) => ((BOTH, pem), (BOTH, pem)),
                (None, Some(chain), Some(key)) => ((CHAIN, chain), (KEY, key)),
                (Some(_), ..) => {
                    return Err(ConfigError::Contradiction {
                        first: BOTH.to_owned(),
                        second: if settings.key.is_some() { KEY } else { CHAIN }.to_owned(),
                        reason: "both give the client's certificate: give it once",
                    });
                }
                (None, None, Some(_)) => return Err(unusable(CHAIN, "is missing beside the key")),
                (None, Some(_), None) => return Err(unusable(KEY, "is missing beside the chain")),
            };
        let chain = certificates(chain_setting, &read(chain, chain_setting)?)?;
        // Not the library's words: they might quote the key.
        let key = PrivateKeyDer::from_pem_slice(&read(key, key_setting)?)
            .map_err(|_| unusable(key_setting, "holds no private key in PEM, unencrypted"))?;
        Ok(Some((chain, key)))
    }

    fn certificates(
        setting: &str,
        pem: &[u8],
    ) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let found = found.map_err(|error| unusable(setting, error))?;
        if found.is_empty() {
            return Err(unusable(setting, "holds no certificate"));
        }
        Ok(found)
    }

    /// Checks everything but the name.
    #[derive(Debug)]
    struct AnyHost {
        roots: Arc<RootCertStore>,
        provider: Arc<CryptoProvider>,
        inner: Arc<WebPkiServerVerifier>,
    }

    impl ServerCertVerifier for AnyHost {
        fn verify_server_cert(
            &self,
            end_entity: &CertificateDer<'_>,
            intermediates: &[CertificateDer<'_>],
            _server_name: &ServerName<'_>,
            _ocsp_response: &[u8],
            now: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            let certificate = rustls::server::ParsedCertificate::try_from(end_entity)?;
            rustls::client::verify_server_cert_signed_by_trust_anchor(
                &certificate,
                &self.roots,
                intermediates,
                now,
                self.provider.signature_verification_algorithms.all,
            )?;
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            self.inner
                .verify_tls12_signature(message, certificate, signature)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            self.inner
                .verify_tls13_signature(message, certificate, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.inner.supported_verify_schemes()
        }
    }
}

#[cfg(feature = "tls")]
pub(crate) use within::Phase;
