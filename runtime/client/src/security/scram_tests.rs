//! The SCRAM machine: published vectors, every cell of its table, and servers that lie.

use proptest::prelude::*;

use super::*;

const NONCE: &str = "rOprNGfwEbeRWgbNEkqO";

/// RFC 7677, section 3.
const SHA_256: [&str; 3] = [
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
     p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
];

/// Computed with Python's hashlib; a user and a password that need escapes.
const SHA_512: [&str; 3] = [
    "r=rOprNGfwEbeRWgbNEkqOserver+part/0,s=AAECAwQFBgcICQoLDA0ODw==,i=8192",
    "c=biws,r=rOprNGfwEbeRWgbNEkqOserver+part/0,\
     p=YXIyasxz6G9AUa1lx2qx1XtnCZoETGhbzvobkdHc35hJCLSBSiD9ucVuR51wczShy7s1MdalV7mOEBRUcL4FQg==",
    "v=ZiyLMUJDOkk+9K0Fpm22dQQL5WnKGzG9InVjv8QP8Ce4yd3lLJqQZHAhEwF50LdlSPua738AArEYkx4zF7yV1g==",
];

fn sha_256() -> Scram {
    Scram::new(Hash::Sha256, "user", "pencil", NONCE.to_owned())
}

fn sent(command: Command) -> String {
    match command {
        Command::Send(message) => String::from_utf8(message).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn distrusted(command: Command) -> &'static str {
    match command {
        Command::Distrust(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_published_exchanges_come_out_byte_for_byte() {
    let mut scram = sha_256();
    assert_eq!(sent(scram.begin()), format!("n,,n=user,r={NONCE}"));
    assert_eq!(sent(scram.hear(SHA_256[0].as_bytes())), SHA_256[1]);
    assert_eq!(scram.hear(SHA_256[2].as_bytes()), Command::Finish);
    assert_eq!(scram.state(), State::Done);

    let mut scram = Scram::new(Hash::Sha512, "a=b,c", "pässwörd", NONCE.to_owned());
    assert_eq!(sent(scram.begin()), format!("n,,n=a=3Db=2Cc,r={NONCE}"));
    assert_eq!(sent(scram.hear(SHA_512[0].as_bytes())), SHA_512[1]);
    assert_eq!(scram.hear(SHA_512[2].as_bytes()), Command::Finish);
}

#[test]
fn every_cell_of_the_table() {
    use Action::{OutOfOrder, Refused, SendFirst, SendProof, Verify};
    use State::{Done, Failed, FinalSent, FirstSent, Ready};
    let no = (Failed, OutOfOrder);
    let refused = (Failed, Refused);
    let events = [
        Event::Begin,
        Event::ServerFirst,
        Event::ServerFinal,
        Event::ServerError,
        Event::Nonsense,
    ];
    for (state, row) in [
        (Ready, [(FirstSent, SendFirst), no, no, no, no]),
        (FirstSent, [no, (FinalSent, SendProof), no, refused, no]),
        (FinalSent, [no, no, (Done, Verify), refused, no]),
        (Done, [no; 5]),
        (Failed, [no; 5]),
    ] {
        for (event, expected) in events.into_iter().zip(row) {
            assert_eq!(transition(state, event), expected, "{state:?} {event:?}");
        }
    }
}

#[test]
fn y2_a_server_that_does_not_know_the_password_is_not_believed() {
    let right = SHA_256[2].strip_prefix("v=").unwrap();
    let right = STANDARD.decode(right).unwrap();
    let mut wrong: Vec<Vec<u8>> = (0..right.len() * 8)
        .map(|bit| {
            let mut signature = right.clone();
            signature[bit / 8] ^= 1 << (bit % 8);
            signature
        })
        .collect();
    wrong.extend([vec![], right[..31].to_vec(), [right, vec![0]].concat()]);
    for signature in wrong {
        let mut scram = sha_256();
        scram.begin();
        scram.hear(SHA_256[0].as_bytes());
        let answer = format!("v={}", STANDARD.encode(signature));
        let reason = distrusted(scram.hear(answer.as_bytes()));
        assert!(reason.contains("signature is wrong"), "{reason}");
        assert_eq!(scram.state(), State::Failed);
        // Nor is it when it tries again with the right one.
        distrusted(scram.hear(SHA_256[2].as_bytes()));
    }
}

#[test]
fn a_success_that_skips_the_proof_is_not_believed() {
    let mut scram = sha_256();
    scram.begin();
    distrusted(scram.hear(SHA_256[2].as_bytes()));
    let mut scram = sha_256();
    scram.begin();
    scram.hear(SHA_256[0].as_bytes());
    distrusted(scram.hear(b""));
}

#[test]
fn y2_a_challenge_that_is_not_for_us_or_too_weak_or_too_dear_is_refused() {
    for (first, reason) in [
        ("r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (
            "r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "nonce",
        ),
        (
            "r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4095",
            "fewer",
        ),
        (
            "r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1",
            "fewer",
        ),
        (
            "r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4000000000",
            "more",
        ),
        (
            "r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=99999999999",
            "SCRAM",
        ),
        (
            "r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=-5",
            "SCRAM",
        ),
        (
            "r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=",
            "SCRAM",
        ),
        ("r=rOprNGfwEbeRWgbNEkqOx,s=,i=4096", "SCRAM"),
        ("r=rOprNGfwEbeRWgbNEkqOx,s=%%%,i=4096", "SCRAM"),
        ("r=rOprNGfwEbeRWgbNEkqOx,i=4096", "SCRAM"),
        (
            "r=rOprNGfwEbeRWgbNEkqO\u{7f},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "SCRAM",
        ),
        (
            "m=ext,r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "belong",
        ),
        ("", "belong"),
    ] {
        let mut scram = sha_256();
        scram.begin();
        let said = distrusted(scram.hear(first.as_bytes()));
        assert!(said.contains(reason), "{first}: {said}");
        assert_eq!(scram.state(), State::Failed);
    }
}

#[test]
fn an_error_of_the_server_ends_the_exchange_with_its_words() {
    let mut scram = sha_256();
    scram.begin();
    scram.hear(SHA_256[0].as_bytes());
    let refused = Command::Refused("unknown-user".to_owned());
    assert_eq!(scram.hear(b"e=unknown-user"), refused);
    assert_eq!(scram.state(), State::Failed);
}

#[test]
fn extensions_behind_the_iterations_are_signed_and_otherwise_ignored() {
    let mut scram = sha_256();
    scram.begin();
    let first = format!("{},x=y", SHA_256[0]);
    let proof = sent(scram.hear(first.as_bytes()));
    assert_ne!(proof, SHA_256[1], "the signed text is another one");
}

proptest! {
    /// Whatever comes, in whatever state: no panic, and never success.
    #[test]
    fn a_hostile_server_gets_nowhere(
        messages in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..200),
                "[rvesim]=[ -~]{0,80}".prop_map(String::into_bytes),
                "r=rOprNGfwEbeRWgbNEkqO[!-+]{0,4},s=[A-Za-z0-9=]{0,8},i=[0-9]{0,4}"
                    .prop_map(String::into_bytes),
            ],
            0..5,
        ),
    ) {
        let mut scram = sha_256();
        scram.begin();
        for message in messages {
            prop_assert_ne!(scram.hear(&message), Command::Finish);
        }
    }
}
