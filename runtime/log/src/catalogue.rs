//! The catalogue: which topics there are, and what else has settings, in one small file that is
//! replaced as a whole.
//!
//! ```text
//! millstream-catalogue 1                           (2 once there are settings of something else)
//! next-topic 7
//! topic <name> <id> <partitions>
//! config <key>=<value, with \\ \n \r escaped>      (of what is above)
//! settings <kind> <name, escaped>
//! crc32c <8 hex digits over everything before>
//! ```
//!
//! Invariants: names are legal, unique and do not collide as Kafka defines it; topic numbers grow
//! and are never used twice, so an id never returns.
//! Never: touches a topic's directory.

use std::collections::BTreeMap;
use std::path::Path;

use millstream_protocol::Uuid;

use crate::error::LogError;
use crate::storage::{OpenMode, Storage, read_all, replace};

/// The catalogue's file, below the data directory.
pub const FILE: &str = "catalogue";
/// The version that knows settings of other things than topics; a catalogue without such has 1,
/// which older programs read.
const VERSION: u32 = 2;
const NAME_BYTES_MAX: usize = 249;
const PARTITIONS_MAX: i32 = 100_000;

/// What is kept of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicEntry {
    pub(crate) id: Uuid,
    pub(crate) partitions: i32,
    pub(crate) configs: BTreeMap<String, String>,
}

/// Settings by their names.
pub type Settings = BTreeMap<String, String>;

/// Settings of what is no topic, by its kind (a word) and its name.
pub type OtherSettings = BTreeMap<(String, String), Settings>;

/// All topics by name, and the settings of other things.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Catalogue {
    pub(crate) topics: BTreeMap<String, TopicEntry>,
    pub(crate) next_topic: u64,
    pub(crate) others: OtherSettings,
}

/// What the lines of settings that follow belong to.
enum Section {
    Topic(String),
    Other(String, String),
}

/// Checks a topic's name by Kafka's rules.
pub fn check_topic_name(name: &str) -> Result<(), LogError> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let reason = match name {
        "" => "it is empty",
        "." | ".." => "it is a directory of its own",
        _ if name.len() > NAME_BYTES_MAX => "it is longer than 249 characters",
        _ if !name.bytes().all(legal) => "only ASCII letters, digits, '.', '_' and '-' are allowed",
        _ => return Ok(()),
    };
    Err(LogError::InvalidTopic {
        name: name.to_owned(),
        reason: reason.to_owned(),
    })
}

/// Checks a topic's number of partitions.
pub(crate) fn check_partitions(name: &str, partitions: i32) -> Result<(), LogError> {
    if (1..=PARTITIONS_MAX).contains(&partitions) {
        return Ok(());
    }
    Err(LogError::InvalidPartitions {
        name: name.to_owned(),
        partitions,
    })
}

/// An identifier of 16 bytes that depends on all parts; the parts make it unique.
pub(crate) fn derive_id(parts: &[&[u8]]) -> Uuid {
    let mut state = [0x6D69_6C6C_7374_7265_u64, 0x616D_2D74_6F70_6963];
    for (lane, word) in state.iter_mut().enumerate() {
        for (index, part) in parts.iter().enumerate() {
            for byte in part.iter().copied().chain([index as u8, 0xFF, lane as u8]) {
                *word = (*word ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
                *word ^= *word >> 29;
            }
        }
        // A last mix, so that all bits depend on the last bytes too.
        *word = (*word ^ (*word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        *word = (*word ^ (*word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        *word ^= *word >> 31;
    }
    let mut id = [0; 16];
    id[..8].copy_from_slice(&state[0].to_be_bytes());
    id[8..].copy_from_slice(&state[1].to_be_bytes());
    // Version and variant bits of a UUID with own content.
    id[6] = (id[6] & 0x0F) | 0x80;
    id[8] = (id[8] & 0x3F) | 0x80;
    Uuid(id)
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('\r', "\\r")
}

fn unescape(value: &str) -> Option<String> {
    let mut out = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        out.push(match character {
            '\\' => match characters.next()? {
                '\\' => '\\',
                'n' => '\n',
                'r' => '\r',
                _ => return None,
            },
            other => other,
        });
    }
    Some(out)
}

impl Catalogue {
    /// Reads the file; `None` when there is none yet.
    pub(crate) fn load(storage: &dyn Storage) -> Result<Option<Catalogue>, LogError> {
        let path = Path::new(FILE);
        let io = |error| LogError::io("read", path, error);
        if !storage.exists(path).map_err(io)? {
            return Ok(None);
        }
        let file = storage.open(path, OpenMode::Read).map_err(io)?;
        Catalogue::decode(&read_all(&*file).map_err(io)?).map(Some)
    }

    /// Replaces the file durably.
    pub(crate) fn store(&self, storage: &dyn Storage) -> Result<(), LogError> {
        replace(storage, FILE, &self.encode())
    }

    /// Fails unless a topic of that name could be added.
    pub(crate) fn check_new(&self, name: &str, partitions: i32) -> Result<(), LogError> {
        check_topic_name(name)?;
        check_partitions(name, partitions)?;
        if self.topics.contains_key(name) {
            return Err(LogError::TopicExists {
                name: name.to_owned(),
            });
        }
        let fold = |byte: u8| if byte == b'.' { b'_' } else { byte };
        let collides = |other: &&String| other.bytes().map(fold).eq(name.bytes().map(fold));
        if name.contains(['.', '_'])
            && let Some(other) = self.topics.keys().find(collides)
        {
            let reason = format!("it collides with topic {other}: '.' and '_' count as the same");
            return Err(LogError::InvalidTopic {
                name: name.to_owned(),
                reason,
            });
        }
        Ok(())
    }

    fn encode(&self) -> Vec<u8> {
        let version = if self.others.is_empty() { 1 } else { VERSION };
        let mut text = format!(
            "millstream-catalogue {version}\nnext-topic {}\n",
            self.next_topic
        );
        let push = |text: &mut String, settings: &Settings| {
            for (key, value) in settings {
                text.push_str(&format!("config {}={}\n", escape(key), escape(value)));
            }
        };
        for (name, entry) in &self.topics {
            text.push_str(&format!("topic {name} {} {}\n", entry.id, entry.partitions));
            push(&mut text, &entry.configs);
        }
        for ((kind, name), settings) in &self.others {
            text.push_str(&format!("settings {kind} {}\n", escape(name)));
            push(&mut text, settings);
        }
        let crc = crc_fast::crc32_iscsi(text.as_bytes());
        text.push_str(&format!("crc32c {crc:08x}\n"));
        text.into_bytes()
    }

    fn decode(bytes: &[u8]) -> Result<Catalogue, LogError> {
        let damaged = |line: usize, reason: &str| {
            LogError::corrupt(FILE, 0, format!("line {}: {reason}", line + 1))
        };
        let text = std::str::from_utf8(bytes).map_err(|_| damaged(0, "it is not UTF-8"))?;
        let version = text
            .strip_prefix("millstream-catalogue ")
            .and_then(|rest| rest.split('\n').next()?.parse::<u32>().ok())
            .ok_or_else(|| damaged(0, "it is not a topic catalogue"))?;
        if version > VERSION {
            return Err(LogError::NewerFormat {
                directory: FILE.to_owned(),
                found: version,
                supported: VERSION,
            });
        }
        let (body, crc) = text
            .trim_end_matches('\n')
            .rsplit_once("\ncrc32c ")
            .ok_or_else(|| damaged(0, "its end is missing"))?;
        let covered = &bytes[..=body.len()];
        if u32::from_str_radix(crc, 16) != Ok(crc_fast::crc32_iscsi(covered)) {
            return Err(damaged(0, "its checksum does not match"));
        }
        let mut catalogue = Catalogue::default();
        let mut current = None;
        for (index, line) in body.lines().enumerate().skip(1) {
            catalogue
                .take_line(line, &mut current)
                .ok_or_else(|| damaged(index, "it is not understood"))?;
        }
        Ok(catalogue)
    }

    fn take_line(&mut self, line: &str, current: &mut Option<Section>) -> Option<()> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            "next-topic" => self.next_topic = rest.parse().ok()?,
            "topic" => {
                let mut words = rest.split(' ');
                let name = words.next()?.to_owned();
                check_topic_name(&name).ok()?;
                let id = words.next()?.parse().ok()?;
                let partitions = words.next()?.parse().ok()?;
                let entry = TopicEntry {
                    id,
                    partitions,
                    configs: BTreeMap::new(),
                };
                self.topics.insert(name.clone(), entry);
                *current = Some(Section::Topic(name));
            }
            "settings" => {
                let (kind, name) = rest.split_once(' ')?;
                let (kind, name) = (kind.to_owned(), unescape(name)?);
                self.others
                    .insert((kind.clone(), name.clone()), Settings::new());
                *current = Some(Section::Other(kind, name));
            }
            "config" => {
                let (key, value) = rest.split_once('=')?;
                let settings = match current.as_ref()? {
                    Section::Topic(name) => &mut self.topics.get_mut(name)?.configs,
                    Section::Other(kind, name) => {
                        self.others.get_mut(&(kind.clone(), name.clone()))?
                    }
                };
                settings.insert(unescape(key)?, unescape(value)?);
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemoryStorage;

    fn sample() -> Catalogue {
        let configs = BTreeMap::from([
            ("cleanup.policy".to_owned(), "compact".to_owned()),
            (
                "note".to_owned(),
                "two\nlines = \\ and a\rreturn".to_owned(),
            ),
        ]);
        let entry = TopicEntry {
            id: Uuid([9; 16]),
            partitions: 4,
            configs,
        };
        let other = TopicEntry {
            id: Uuid([1; 16]),
            partitions: 1,
            configs: BTreeMap::new(),
        };
        let topics = BTreeMap::from([
            ("orders.audit".to_owned(), entry),
            ("z-1_x".to_owned(), other),
        ]);
        let group = ("group".to_owned(), "a group\nwith lines=".to_owned());
        let brokers = ("broker".to_owned(), String::new());
        let setting = |name: &str| Settings::from([(name.to_owned(), "7".to_owned())]);
        Catalogue {
            topics,
            next_topic: 12,
            others: [
                (group, setting("consumer.session.timeout.ms")),
                (brokers, setting("log.retention.ms")),
            ]
            .into(),
        }
    }

    #[test]
    fn a_catalogue_of_topics_alone_is_one_that_older_programs_read() {
        let topics = Catalogue {
            others: OtherSettings::new(),
            ..sample()
        };
        for (catalogue, version) in [(topics, 1), (sample(), 2)] {
            let first = format!("millstream-catalogue {version}\n");
            assert!(catalogue.encode().starts_with(first.as_bytes()));
            assert_eq!(Catalogue::decode(&catalogue.encode()).unwrap(), catalogue);
        }
    }

    #[test]
    fn the_catalogue_reads_back_and_a_flipped_bit_is_refused() {
        let storage = MemoryStorage::new();
        assert_eq!(Catalogue::load(&storage).unwrap(), None);
        sample().store(&storage).unwrap();
        assert_eq!(Catalogue::load(&storage).unwrap(), Some(sample()));
        assert_eq!(Catalogue::load(&storage.crash()).unwrap(), Some(sample()));
        let bytes = sample().encode();
        for bit in 0..(bytes.len() - 1) * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // A hexadecimal digit of the checksum may change its case without changing its value.
            match Catalogue::decode(&flipped) {
                Ok(same) => assert_eq!(same, sample(), "bit {bit}"),
                Err(error) => assert!(error.to_string().contains("catalogue"), "{error}"),
            }
        }
        for size_bytes in 0..bytes.len() - 1 {
            assert!(Catalogue::decode(&bytes[..size_bytes]).is_err());
        }
    }

    #[test]
    fn a_newer_catalogue_is_refused_by_its_version() {
        let refused = Catalogue::decode(b"millstream-catalogue 3\nwhatever\n").unwrap_err();
        assert!(matches!(
            refused,
            LogError::NewerFormat {
                found: 3,
                supported: 2,
                ..
            }
        ));
    }

    #[test]
    fn topic_names_follow_kafkas_rules() {
        for legal in [
            "a",
            "orders.enriched",
            "__consumer_offsets",
            "A-1_b.C",
            &"x".repeat(249),
        ] {
            check_topic_name(legal).unwrap();
        }
        for illegal in [
            "",
            ".",
            "..",
            "a b",
            "a/b",
            "ü",
            "a\0",
            "a:b",
            &"x".repeat(250),
        ] {
            assert!(check_topic_name(illegal).is_err(), "{illegal:?}");
        }
        let catalogue = sample();
        let refused = catalogue
            .check_new("orders_audit", 1)
            .unwrap_err()
            .to_string();
        assert!(refused.contains("orders.audit"), "{refused}");
        assert!(matches!(
            catalogue.check_new("z-1_x", 1),
            Err(LogError::TopicExists { .. })
        ));
        for partitions in [0, -1, 100_001] {
            let refused = catalogue.check_new("new", partitions);
            assert!(matches!(refused, Err(LogError::InvalidPartitions { .. })));
        }
        catalogue.check_new("new", 1).unwrap();
    }

    #[test]
    fn derived_ids_differ_in_every_part() {
        let ids: std::collections::BTreeSet<Uuid> = (0_u64..1000)
            .flat_map(|number| {
                [
                    derive_id(&[b"cluster", &number.to_be_bytes()]),
                    derive_id(&[b"other", &number.to_be_bytes()]),
                    derive_id(&[b"cluste", b"r", &number.to_be_bytes()]),
                ]
            })
            .collect();
        assert_eq!(ids.len(), 3000);
    }
}
