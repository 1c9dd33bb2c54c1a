//! Tests of the partition log over a storage in memory: what the fixture does for all of them.

mod append;
mod compaction;
mod compaction_model;
mod durable;
mod failure;
mod model;
mod read;
mod recovery;
mod retention;
mod settings;
mod transaction;

use super::*;
use crate::storage::{FaultyStorage, MemoryStorage};
use millstream_protocol::{
    Compression, ControlMarker, ProducerStamp, RecordBatch, RecordBatchBuilder, control_batch,
};

pub(super) const NOW: i64 = 1_000_000;

pub(super) fn config() -> PartitionConfig {
    PartitionConfig {
        index_interval_bytes: 200,
        ..PartitionConfig::default()
    }
}

pub(super) fn setup(storage: Arc<dyn Storage>, recovery: Recovery) -> PartitionSetup {
    PartitionSetup {
        storage,
        directory: PathBuf::from("orders-0"),
        topic_id: Uuid([7; 16]),
        partition: 0,
        config: config(),
        journal: None,
        durability: Durability::Os,
        recovery,
    }
}

pub(super) fn clean(storage: &MemoryStorage) -> PartitionLog {
    PartitionLog::open(setup(Arc::new(storage.clone()), Recovery::Clean)).unwrap()
}

pub(super) fn unclean(storage: &MemoryStorage, checkpoint_offset: i64) -> PartitionLog {
    let recovery = Recovery::Unclean { checkpoint_offset };
    PartitionLog::open(setup(Arc::new(storage.clone()), recovery)).unwrap()
}

/// A log in a storage of its own, with these settings.
pub(super) fn log_with(config: PartitionConfig) -> PartitionLog {
    let storage = Arc::new(MemoryStorage::new());
    PartitionLog::open(PartitionSetup {
        config,
        ..setup(storage, Recovery::Clean)
    })
    .unwrap()
}

pub(super) fn stamp(producer_id: i64, epoch: i16, sequence: i32) -> ProducerStamp {
    ProducerStamp {
        producer_id,
        producer_epoch: epoch,
        base_sequence: sequence,
        transactional: false,
    }
}

pub(super) fn transactional(stamp: ProducerStamp) -> ProducerStamp {
    ProducerStamp {
        transactional: true,
        ..stamp
    }
}

/// A batch of `count` records whose values tell the stamp's sequence, at this time.
pub(super) fn batch_at(timestamp: i64, count: i32, stamp: ProducerStamp) -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    for index in 0..count {
        let value = format!("{}-{}", stamp.base_sequence, index);
        builder.append(
            timestamp + i64::from(index),
            Some(b"key"),
            Some(value.as_bytes()),
            &[],
        );
    }
    builder.finish(stamp).unwrap()
}

pub(super) fn batch(count: i32, stamp: ProducerStamp) -> Bytes {
    batch_at(NOW, count, stamp)
}

pub(super) fn plain(count: i32) -> Bytes {
    batch(count, ProducerStamp::NONE)
}

impl PartitionLog {
    pub(super) fn put(&self, batch: Bytes) -> Appended {
        self.append(batch, AppendOrigin::Client, NOW).unwrap()
    }

    pub(super) fn refused(&self, batch: Bytes) -> i16 {
        let before = self.offsets();
        let error = self.append(batch, AppendOrigin::Client, NOW).unwrap_err();
        assert_eq!(self.offsets(), before, "a refused append changes nothing");
        error.error_code().code()
    }

    pub(super) fn end_transaction(
        &self,
        producer_id: i64,
        epoch: i16,
        commit: bool,
    ) -> Result<Appended, AppendError> {
        self.end_from(producer_id, epoch, commit, 0)
    }

    pub(super) fn end_from(
        &self,
        producer_id: i64,
        epoch: i16,
        commit: bool,
        coordinator_epoch: i32,
    ) -> Result<Appended, AppendError> {
        let marker = ControlMarker::new(commit, coordinator_epoch);
        let origin = AppendOrigin::Marker {
            coordinator_epoch,
            transaction_version: 2,
        };
        self.append(control_batch(marker, producer_id, epoch, NOW), origin, NOW)
    }

    pub(super) fn read_from(&self, offset: i64, isolation: Isolation) -> ReadResult {
        let request = ReadRequest {
            offset,
            max_bytes: 1 << 20,
            isolation,
            at_least_one: true,
        };
        self.read(request).unwrap()
    }

    /// Base offsets of the batches from `offset` to the end, reading as often as it takes.
    pub(super) fn bases(&self, mut offset: i64, isolation: Isolation) -> Vec<i64> {
        let mut bases = Vec::new();
        loop {
            let batches = parsed(&self.read_from(offset, isolation));
            let Some(last) = batches.last() else {
                return bases;
            };
            offset = last.next_offset();
            bases.extend(batches.iter().map(RecordBatch::base_offset));
        }
    }

    pub(super) fn forget_tail(&self) {
        self.lock().tail.clear();
    }

    pub(super) fn stable(&self) -> i64 {
        self.offsets().last_stable
    }

    pub(super) fn producer_state(&self) -> crate::producer_state::ProducerState {
        self.lock().producers.clone()
    }
}

pub(super) fn parsed(result: &ReadResult) -> Vec<RecordBatch> {
    let mut batches = Vec::new();
    for bytes in &result.batches {
        let mut bytes = bytes.clone();
        while let Some(batch) = RecordBatch::split_from(&mut bytes).unwrap() {
            batch.verify_crc().unwrap();
            batches.push(batch);
        }
        assert!(bytes.is_empty(), "only whole batches are handed out");
    }
    batches
}

/// Changes one byte of a file.
pub(super) fn flip(storage: &dyn Storage, path: &str, position: u64) {
    let file = storage
        .open(Path::new(path), crate::storage::OpenMode::Write)
        .unwrap();
    let mut byte = [0];
    assert_eq!(
        file.read_at(&mut byte, position).unwrap(),
        1,
        "{path} is long enough"
    );
    file.write_at(&[&[byte[0] ^ 1]], position).unwrap();
}

pub(super) fn content(storage: &dyn Storage, path: &str) -> Vec<u8> {
    let file = storage
        .open(Path::new(path), crate::storage::OpenMode::Read)
        .unwrap();
    crate::storage::read_all(file.as_ref()).unwrap()
}

pub(super) const FIRST_LOG: &str = "orders-0/00000000000000000000.log";

pub(super) fn faulty(storage: &FaultyStorage, recovery: Recovery) -> PartitionLog {
    PartitionLog::open(setup(Arc::new(storage.clone()), recovery)).unwrap()
}
