//! What producer and consumer both say about a group: offsets to commit, and who commits them.
//!
//! Never: asks anybody; both are plain values.

/// A position to commit: the offset of the next record to read, not of the last one read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffsetAndMetadata {
    /// The next offset to read.
    pub offset: i64,
    /// Leader epoch of the last record read, where it is known.
    pub leader_epoch: Option<i32>,
    /// Any text of at most 4096 bytes (broker's `offset.metadata.max.bytes`), kept as it is.
    pub metadata: String,
}

impl OffsetAndMetadata {
    /// A position without epoch or text.
    #[must_use]
    pub fn new(offset: i64) -> Self {
        OffsetAndMetadata {
            offset,
            ..Default::default()
        }
    }
}

impl From<i64> for OffsetAndMetadata {
    fn from(offset: i64) -> Self {
        OffsetAndMetadata::new(offset)
    }
}

/// A consumer's membership at one moment, for a producer that commits the consumer's offsets
/// inside its transaction. The coordinator refuses it once the membership is void, which is what
/// keeps a replaced instance from committing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMetadata {
    /// `group.id`.
    pub group_id: String,
    /// Generation that the member belongs to; -1 for a consumer that assigns its own partitions.
    pub generation_id: i32,
    /// Id that the coordinator gave; empty for a consumer that assigns its own partitions.
    pub member_id: String,
    /// `group.instance.id` of a static member.
    pub group_instance_id: Option<String>,
    /// Whether the consumer also commits by itself, which breaks exactly-once.
    pub auto_commit: bool,
}

impl GroupMetadata {
    /// The metadata of a consumer that is no member of the group: for consumers with partitions
    /// of their own choice. Such commits are not protected against a second instance.
    #[must_use]
    pub fn without_membership(group_id: impl Into<String>) -> Self {
        GroupMetadata {
            group_id: group_id.into(),
            generation_id: -1,
            member_id: String::new(),
            group_instance_id: None,
            auto_commit: false,
        }
    }
}
