//! What fuzzing found worth keeping, and the golden frames, through the fuzz targets' checks.
//!
//! Invariants: memory is bounded by the size of each input, as it is while fuzzing.
//! Never: more than one test; another one's memory would be counted.

use std::fs;
use std::path::Path;

use peak_alloc::PeakAlloc;

#[allow(dead_code, reason = "golden frames need the rest")]
#[path = "../wire/any.rs"]
mod any;
mod bound;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    let read = |path| fs::read(path).expect("readable");
    files.iter().map(read).collect()
}

#[test]
fn the_corpus_of_every_fuzz_target_passes_within_its_bound() {
    let mut counts = Vec::new();
    for (target, bound) in [
        ("request", bound::MESSAGE),
        ("response", bound::MESSAGE),
        ("batch", bound::BATCHES),
    ] {
        let inputs = inputs(target);
        for input in &inputs {
            bound.hold(&MEMORY, input, |input| match target {
                "request" => any::try_request(input),
                "response" => any::try_response(input),
                _ => any::try_batches(input),
            });
        }
        counts.push((target, inputs.len()));
    }
    assert!(counts.iter().all(|(_, count)| *count > 20), "{counts:?}");
}
