//! Every operator of the DSL, through the topology test driver.
//!
//! Invariants: each test names the behaviour; outputs are compared whole and in order.
//! Never: needs a broker.

use bytes::Bytes;
use millstream_streams::{
    BoxError, PoisonPolicy, ProcessorContext, RecordContext, StreamsBuilder, StreamsError,
    TopologyError, TopologyTestDriver, ValueProcessor, json, strings,
};
use serde::{Deserialize, Serialize};

fn run(builder: StreamsBuilder, inputs: &[(&str, &str)]) -> TopologyTestDriver {
    let mut driver = TopologyTestDriver::new(builder.build().expect("a sound topology"));
    for (at, (key, value)) in inputs.iter().enumerate() {
        driver
            .pipe(
                "in",
                &strings(),
                (*key).to_owned(),
                (*value).to_owned(),
                at as i64,
            )
            .expect("the record is processed");
    }
    driver
}

fn outputs(driver: &mut TopologyTestDriver, topic: &str) -> Vec<(String, String)> {
    std::iter::from_fn(|| driver.read(topic, &strings()).expect("text"))
        .map(|record| (record.key, record.value))
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

#[test]
fn stateless_operators_change_what_they_say_and_nothing_else() {
    let builder = StreamsBuilder::new();
    builder
        .stream("in", strings())
        .filter(|_, value| !value.is_empty())
        .map(|key, value| (format!("{key}!"), value))
        .map_values(|key, value| format!("{key}{value}"))
        .flat_map(|key, value| vec![(key.clone(), value.clone()), (key, value.to_uppercase())])
        .to("out", strings());
    let mut driver = run(builder, &[("a", "x"), ("b", ""), ("c", "y")]);
    assert_eq!(
        outputs(&mut driver, "out"),
        pairs(&[("a!", "a!x"), ("a!", "A!X"), ("c!", "c!y"), ("c!", "C!Y")]),
    );
}

#[test]
fn a_split_sends_each_record_to_the_first_branch_that_takes_it() {
    let builder = StreamsBuilder::new();
    let mut split = builder.stream("in", strings()).split();
    split
        .branch(|_, value| value.starts_with('a'))
        .to("a", strings());
    split
        .branch(|_, value| value.starts_with("ab") || value == "b")
        .to("b", strings());
    split.default_branch().to("rest", strings());
    let mut driver = run(builder, &[("1", "ab"), ("2", "b"), ("3", "c")]);
    assert_eq!(outputs(&mut driver, "a"), pairs(&[("1", "ab")]));
    assert_eq!(outputs(&mut driver, "b"), pairs(&[("2", "b")]));
    assert_eq!(outputs(&mut driver, "rest"), pairs(&[("3", "c")]));
}

#[test]
fn a_cloned_stream_goes_to_every_use_and_peek_passes_on() {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let builder = StreamsBuilder::new();
    let stream = builder.stream("in", strings());
    stream.clone().to("copy", strings());
    let log = std::sync::Arc::clone(&seen);
    stream
        .peek(move |key, _| log.lock().expect("one thread").push(key.clone()))
        .map_values(|_, value| value.to_uppercase())
        .to("upper", strings());
    let mut driver = run(builder, &[("k", "v")]);
    assert_eq!(outputs(&mut driver, "copy"), pairs(&[("k", "v")]));
    assert_eq!(outputs(&mut driver, "upper"), pairs(&[("k", "V")]));
    assert_eq!(*seen.lock().expect("one thread"), ["k"]);
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Customer {
    name: String,
}

#[test]
fn joins_with_a_global_table_find_rows_by_the_mapped_key() {
    let builder = StreamsBuilder::new();
    let customers = builder.global_table("customers", json::<String, Customer>());
    let stream = builder.stream("in", strings());
    stream
        .clone()
        .left_join_global(
            &customers,
            |_, value| value.clone(),
            |value, customer| format!("{value}={}", customer.map_or("?".to_owned(), |c| c.name)),
        )
        .to("left", strings());
    stream
        .join_global(
            &customers,
            |_, value| value.clone(),
            |value, customer| format!("{value}={}", customer.name),
        )
        .to("inner", strings());
    let mut driver = TopologyTestDriver::new(builder.build().expect("sound"));
    let json = json::<String, Option<Customer>>();
    let row = |key: &str, name: Option<&str>, driver: &mut TopologyTestDriver| {
        let customer = name.map(|name| Customer {
            name: name.to_owned(),
        });
        driver
            .pipe("customers", &json, key.to_owned(), customer, 0)
            .expect("applied");
    };
    row("c1", Some("Zoë"), &mut driver);
    row("c2", Some("gone"), &mut driver);
    row("c2", None, &mut driver);
    for customer in ["c1", "c2", "c3"] {
        driver
            .pipe("in", &strings(), "o".into(), customer.into(), 0)
            .expect("processed");
    }
    assert_eq!(
        outputs(&mut driver, "left"),
        pairs(&[("o", "c1=Zoë"), ("o", "c2=?"), ("o", "c3=?")]),
    );
    assert_eq!(outputs(&mut driver, "inner"), pairs(&[("o", "c1=Zoë")]));
}

/// Forwards a value twice and fails on `bad` after the first of them.
struct Twice;

impl ValueProcessor<String, String> for Twice {
    type Output = String;

    fn process(
        &mut self,
        context: &mut ProcessorContext<'_, String, String>,
        value: String,
    ) -> Result<(), BoxError> {
        context.forward(format!("first {value}"));
        if value == "bad" {
            return Err("this value is bad".into());
        }
        context.forward_at(format!("second {value}"), context.timestamp() + 1);
        Ok(())
    }
}

#[test]
fn a_processor_that_fails_half_way_leaves_no_output_of_its_record() {
    let builder = StreamsBuilder::new();
    builder
        .stream("in", strings())
        .process_values(|| Twice)
        .to("out", strings());
    let topology = builder.build().expect("sound");
    let mut driver = TopologyTestDriver::new(topology).poison(PoisonPolicy::Skip);
    for value in ["good", "bad"] {
        driver
            .pipe("in", &strings(), "k".into(), value.into(), 7)
            .expect("skipped");
    }
    assert_eq!(
        outputs(&mut driver, "out"),
        pairs(&[("k", "first good"), ("k", "second good")])
    );
}

#[test]
fn a_closure_processor_sees_where_the_record_came_from() {
    let builder = StreamsBuilder::new();
    builder
        .stream("in", strings())
        .process_values(|| {
            |context: &RecordContext, _: &String, value: String| {
                format!(
                    "{value} {}/{}@{}",
                    context.topic(),
                    context.partition(),
                    context.offset()
                )
            }
        })
        .to("out", strings());
    let mut driver = run(builder, &[("k", "a"), ("k", "b")]);
    assert_eq!(
        outputs(&mut driver, "out"),
        pairs(&[("k", "a in/0@0"), ("k", "b in/0@1")])
    );
}

#[test]
fn poison_fails_by_default_and_names_the_record() {
    let builder = StreamsBuilder::new();
    builder
        .stream("in", json::<String, Customer>())
        .to("out", json());
    let mut driver = TopologyTestDriver::new(builder.build().expect("sound"));
    let error = driver
        .pipe_raw(
            "in",
            3,
            Some(Bytes::from_static(b"k")),
            Some(Bytes::from_static(b"{")),
            0,
        )
        .expect_err("not JSON");
    assert!(
        matches!(error, StreamsError::Poison { offset: 0, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("in-3, offset 0"), "{error}");
}

#[test]
fn a_dead_letter_is_the_record_with_kafkas_six_headers() {
    let builder = StreamsBuilder::new();
    builder
        .stream("in", json::<String, Customer>())
        .to("out", json());
    let topology = builder.build().expect("sound");
    let mut driver = TopologyTestDriver::new(topology).poison(PoisonPolicy::dead_letter("dead"));
    let (key, value) = (Bytes::from_static(b"k"), Bytes::from_static(b"{oops"));
    driver
        .pipe_raw("in", 2, Some(key), Some(value), 42)
        .expect("kept as a dead letter");
    let letter = driver.read("dead", &strings()).expect("text").expect("one");
    assert_eq!(
        (letter.key.as_str(), letter.value.as_str(), letter.timestamp),
        ("k", "{oops", 42)
    );
    let names: Vec<&str> = letter
        .headers
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    let part = [
        "exception",
        "message",
        "stacktrace",
        "topic",
        "partition",
        "offset",
    ];
    assert_eq!(names, part.map(|part| format!("__streams.errors.{part}")));
    let text = |at: usize| letter.headers[at].1.clone().expect("not null");
    assert_eq!(
        (&text(3)[..], &text(4)[..], &text(5)[..]),
        (&b"in"[..], &b"2"[..], &b"0"[..])
    );
}

#[test]
fn mistakes_in_a_topology_are_found_when_it_is_built() {
    let empty = StreamsBuilder::new().build().expect_err("nothing is read");
    assert!(matches!(empty, TopologyError::NoSource));

    let builder = StreamsBuilder::new();
    builder.stream("in", strings()).to("out", strings());
    let _ = builder.global_table("in", strings());
    assert!(matches!(
        builder.build().expect_err("twice"),
        TopologyError::TopicTwice { .. }
    ));

    let (one, other) = (StreamsBuilder::new(), StreamsBuilder::new());
    let table = other.global_table("t", strings());
    one.stream("in", strings())
        .join_global(&table, |key, _| key.clone(), |value, _| value)
        .to("out", strings());
    assert!(matches!(
        one.build().expect_err("foreign"),
        TopologyError::ForeignTable { .. }
    ));
}

#[test]
fn a_topology_describes_itself_in_kafkas_form() {
    let builder = StreamsBuilder::new();
    let table = builder.global_table("customers", strings());
    builder
        .stream("in", strings())
        .left_join_global(&table, |key, _| key.clone(), |value, _| value)
        .to("out", strings());
    let expected = "\
Topologies:
   Sub-topology: 0 for global store (will not generate tasks)
    Source: KTABLE-SOURCE-0000000000 (topics: [customers])
      --> none
   Sub-topology: 1
    Source: KSTREAM-SOURCE-0000000001 (topics: [in])
      --> KSTREAM-LEFTJOIN-0000000002
    Processor: KSTREAM-LEFTJOIN-0000000002 (stores: [customers])
      --> KSTREAM-SINK-0000000003
      <-- KSTREAM-SOURCE-0000000001
    Sink: KSTREAM-SINK-0000000003 (topic: out)
      <-- KSTREAM-LEFTJOIN-0000000002
";
    assert_eq!(builder.build().expect("sound").to_string(), expected);
}
