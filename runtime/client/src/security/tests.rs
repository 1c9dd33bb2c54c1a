//! Settings of security: by name, in contradiction, and what is printed of them.

use super::*;

const PASSWORD: &str = "s3cr3t-w0rd";

fn named(settings: &[(&str, &str)]) -> Result<Security, ConfigError> {
    let mut security = Security::default();
    for (name, value) in settings {
        assert!(security.set(name, value)?, "{name} is one of security");
    }
    security.check()?;
    Ok(security)
}

fn refused(settings: &[(&str, &str)]) -> String {
    named(settings).map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
}

#[test]
fn nothing_is_the_default_and_other_names_are_left_to_others() {
    let mut security = Security::default();
    assert_eq!(security.protocol(), SecurityProtocol::Plaintext);
    security.check().unwrap();
    assert_eq!(security.set("linger.ms", "5"), Ok(false));
}

#[test]
fn credentials_by_name_are_the_typed_ones_in_any_order() {
    let security = named(&[
        ("sasl.password", PASSWORD),
        ("sasl.username", "orders"),
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanism", "SCRAM-SHA-256"),
    ])
    .unwrap();
    let typed = Security::sasl_plaintext(Sasl::scram_sha_256("orders", PASSWORD));
    assert_eq!(
        security.prepare().unwrap().sasl,
        typed.prepare().unwrap().sasl
    );
    assert_eq!(security.protocol(), SecurityProtocol::SaslPlaintext);
}

#[test]
fn what_contradicts_or_is_missing_is_refused_by_name() {
    let sasl = ("security.protocol", "SASL_PLAINTEXT");
    let mechanism = ("sasl.mechanism", "SCRAM-SHA-512");
    let (user, password) = (("sasl.username", "u"), ("sasl.password", PASSWORD));
    for (settings, keys) in [
        (
            &[user, password][..],
            &["security.protocol=PLAINTEXT", "sasl.username"][..],
        ),
        (
            &[mechanism],
            &["security.protocol=PLAINTEXT", "sasl.mechanism"],
        ),
        (
            &[("ssl.truststore.location", "ca.pem")],
            &["PLAINTEXT", "ssl.truststore"],
        ),
        (
            &[sasl, user, password],
            &["SASL_PLAINTEXT", "sasl.mechanism", "missing"],
        ),
        (
            &[sasl, mechanism, password],
            &["SASL_PLAINTEXT", "sasl.username", "missing"],
        ),
        (
            &[sasl, mechanism, user],
            &["SASL_PLAINTEXT", "sasl.password", "missing"],
        ),
        (
            &[sasl, mechanism, user, ("sasl.password", "")],
            &["sasl.password", "empty"],
        ),
        (
            &[sasl, mechanism, ("sasl.username", "a\0b"), password],
            &["sasl.username", "NUL"],
        ),
        (
            &[("security.protocol", "TLS")],
            &["security.protocol=TLS", "SASL_SSL"],
        ),
        (
            &[("sasl.mechanism", "GSSAPI")],
            &["sasl.mechanism=GSSAPI", "SCRAM-SHA-512"],
        ),
        (
            &[("ssl.truststore.type", "JKS")],
            &["ssl.truststore.type=JKS", "PEM"],
        ),
        (
            &[("ssl.key.password", PASSWORD)],
            &["ssl.key.password", "without a password"],
        ),
        (
            &[("ssl.endpoint.identification.algorithm", "ldaps")],
            &["ldaps", "https"],
        ),
        (
            &[("sasl.kerberos.service.name", "kafka")],
            &["sasl.kerberos.service.name", "not known"],
        ),
    ] {
        let text = refused(settings);
        for key in keys {
            assert!(text.contains(key), "{key} in {text}");
        }
        assert!(!text.contains(PASSWORD), "{text}");
    }
}

#[test]
#[cfg(not(feature = "tls"))]
fn tls_without_the_feature_is_an_error_that_names_it() {
    for security in [
        Security::ssl(),
        Security::sasl_ssl(Sasl::plain("u", PASSWORD)),
    ] {
        let text = security.check().unwrap_err().to_string();
        assert!(
            text.contains("SSL") && text.contains("feature `tls`"),
            "{text}"
        );
    }
}

#[test]
fn a_jaas_line_gives_user_and_password() {
    let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required \
                 username=\"or\\\"ders\" password=\"a b;c\\\\d\";";
    let security = named(&[
        ("security.protocol", "SASL_PLAINTEXT"),
        ("sasl.mechanism", "SCRAM-SHA-512"),
        ("sasl.jaas.config", scram),
    ])
    .unwrap();
    let expected = Sasl::scram_sha_512("or\"ders", "a b;c\\d");
    assert_eq!(security.prepare().unwrap().sasl.as_deref(), Some(&expected));
    let text = refused(&[
        ("security.protocol", "SASL_PLAINTEXT"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.jaas.config", scram),
    ]);
    assert!(
        text.contains("sasl.mechanism=PLAIN") && text.contains("ScramLoginModule"),
        "{text}"
    );
    for line in [
        "",
        "com.sun.security.auth.module.Krb5LoginModule required;",
        "x.PlainLoginModule required username=\"u\";",
        "x.PlainLoginModule required username=\"u\" password=\"s3cr3t-w0rd;",
        "x.PlainLoginModule required username=\"u\" s3cr3t-w0rd;",
        "x.ScramLoginModule required username=\"u\" password=\"s3cr3t-w0rd\" tokenauth=\"true\";",
    ] {
        let text = refused(&[("sasl.jaas.config", line)]);
        assert!(text.contains("sasl.jaas.config: "), "{text}");
        assert!(!text.contains(PASSWORD), "{text}");
    }
}

#[test]
fn a_properties_file_is_read_as_java_reads_it() {
    let read = properties(
        "# comment\n\
         ! another\n\
         \n\
         a=1\n\
         b : 2\n\
         c 3\n\
         d = x=y\\\n\
             \t:z \n\
         e\\=f=\\u0041\\tB\\\\\n\
         g\n",
    );
    let expected = [
        ("a", "1"),
        ("b", "2"),
        ("c", "3"),
        ("d", "x=y:z "),
        ("e=f", "A\tB\\"),
        ("g", ""),
    ];
    assert_eq!(read, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
    let text = Security::from_properties("acks=all")
        .unwrap_err()
        .to_string();
    assert!(text.contains("acks"), "{text}");
}

#[test]
fn no_text_has_the_password() {
    let sasl = Sasl::plain("orders", PASSWORD);
    let security = Security::sasl_plaintext(sasl.clone());
    let texts = [
        format!("{sasl:?}"),
        format!("{security:?}"),
        format!("{:?}", security.prepare()),
        format!(
            "{:?}",
            crate::ClientConfig {
                security: security.clone(),
                ..crate::ClientConfig::default()
            }
        ),
        format!(
            "{:?}",
            Security::default().client_certificate_pem("chain", PASSWORD)
        ),
    ];
    for text in texts {
        assert!(!text.contains(PASSWORD), "{text}");
    }
    assert!(format!("{security:?}").contains("orders"));
}

#[test]
fn plain_sends_user_and_password_and_takes_no_question() {
    let mut exchange = Sasl::plain("u", "p").exchange().unwrap();
    assert_eq!(exchange.begin(), Step::Send(b"\0u\0p".to_vec()));
    assert_eq!(exchange.hear(b""), Step::Done);
    let mut exchange = Sasl::plain("u", "p").exchange().unwrap();
    exchange.begin();
    assert!(matches!(exchange.hear(b"what?"), Step::Distrust(_)));
}

#[test]
fn nonces_differ_from_exchange_to_exchange() {
    let sasl = Sasl::scram_sha_256("u", "p");
    let first = || sasl.exchange().unwrap().begin();
    assert_ne!(first(), first());
}

#[test]
fn the_brokers_words_are_clipped_and_cleaned() {
    let words = clipped(&format!("a\n\u{1b}[31m{}", "x".repeat(10_000)));
    assert!(
        words.chars().count() <= 300 && !words.contains(['\n', '\u{1b}']),
        "{words}"
    );
}

#[test]
fn what_an_exchange_sends_is_not_printed() {
    let mut exchange = Sasl::plain("orders", PASSWORD).exchange().unwrap();
    let step = exchange.begin();
    assert!(matches!(&step, Step::Send(message) if message.ends_with(PASSWORD.as_bytes())));
    assert_eq!(format!("{step:?}"), "Send([hidden])");
}

#[test]
fn a_switch_of_tls_without_tls_is_neither_lost_nor_ignored() {
    const SETTING: &str = "ssl.endpoint.identification.algorithm";
    let text = refused(&[(SETTING, "")]);
    assert!(
        text.contains("PLAINTEXT") && text.contains(SETTING),
        "{text}"
    );
    assert!(!Security::default().verify_host_names(false).is_unset());
}
