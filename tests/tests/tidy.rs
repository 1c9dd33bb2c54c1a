//! The structure of the repository, as a test: edges between crates, sizes, headers and names.
//!
//! Invariants: what a rule forbids is named with its place; an exception can only shrink.
//! Never: reads anything but the files of this repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Crates and the crates of ours that they may depend on.
const EDGES: [(&str, &[&str]); 13] = [
    ("millstream-protocol", &[]),
    ("millstream-protocol-fuzz", &["millstream-protocol"]),
    ("millstream-log", &["millstream-protocol"]),
    (
        "millstream-broker",
        &["millstream-log", "millstream-protocol"],
    ),
    ("millstream-client", &["millstream-protocol"]),
    ("millstream-state", &["millstream-protocol"]),
    (
        "millstream-streams",
        &[
            "millstream-client",
            "millstream-protocol",
            "millstream-state",
        ],
    ),
    (
        "millstream",
        &[
            "millstream-broker",
            "millstream-client",
            "millstream-log",
            "millstream-protocol",
            "millstream-state",
            "millstream-streams",
        ],
    ),
    ("millstream-cli", &["millstream"]),
    ("examples", &["millstream"]),
    ("benches", ANY),
    ("tests", ANY),
    // A client of another maker: it knows nothing of ours.
    ("compat-rdkafka", &[]),
];
const ANY: &[&str] = &[
    "examples",
    "millstream",
    "millstream-broker",
    "millstream-cli",
    "millstream-client",
    "millstream-log",
    "millstream-protocol",
    "millstream-state",
    "millstream-streams",
];

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;

/// Files above the limit, with the lines they have. They may only become shorter.
const LONG_FILES: [(&str, usize); 0] = [];
/// Functions above the limit, with the lines they have. They may only become shorter.
const LONG_FUNCTIONS: [(&str, &str, usize); 0] = [];

const BANNED_NAMES: [&str; 5] = ["utils", "util", "common", "helpers", "internals"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file below the root with this ending, `target` and dotted folders left out.
fn files(ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" && name != "node_modules" {
                    folders.push(path);
                }
            } else if name.ends_with(ending) {
                let place = path.strip_prefix(root()).expect("below the root");
                let text = std::fs::read_to_string(&path).expect("UTF-8");
                found.push((place.to_string_lossy().into_owned(), text));
            }
        }
    }
    found.sort();
    found
}

fn assert_none(problems: &[String], rule: &str) {
    assert!(problems.is_empty(), "{rule}:\n  {}", problems.join("\n  "));
}

#[test]
fn dependencies_point_one_way() {
    let allowed: BTreeMap<&str, BTreeSet<&str>> = EDGES
        .iter()
        .map(|(from, to)| (*from, to.iter().copied().collect()))
        .collect();
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    for (place, text) in files("Cargo.toml") {
        let Some(name) = text.lines().find_map(|line| line.strip_prefix("name = \"")) else {
            continue;
        };
        let name = name.trim_end_matches('"').to_owned();
        // A binary's name of its own comes after the package's.
        let Some(allowed) = allowed.get(name.as_str()) else {
            problems.push(format!(
                "{place}: package {name} is not in the list of crates"
            ));
            continue;
        };
        seen.insert(name.clone());
        for line in text.lines() {
            let to = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let ours = EDGES.iter().any(|(crate_name, _)| *crate_name == to);
            if ours && !allowed.contains(to) {
                problems.push(format!("{place}: {name} must not depend on {to}"));
            }
        }
    }
    assert_none(
        &problems,
        "dependencies point one way (ARCHITECTURE.md, the code map)",
    );
    assert_eq!(seen.len(), EDGES.len(), "every crate of the list exists");
}

#[test]
fn every_source_file_begins_with_its_purpose() {
    let problems: Vec<String> = files(".rs")
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(place, _)| place)
        .collect();
    assert_none(
        &problems,
        "a file begins with `//!`: what it is, in one sentence",
    );
}

#[test]
fn files_and_functions_stay_small() {
    let mut problems = Vec::new();
    for (place, text) in files(".rs") {
        let lines = text.lines().count();
        let limit = LONG_FILES
            .iter()
            .find(|(file, _)| *file == place)
            .map_or(FILE_LINES_MAX, |(_, lines)| *lines);
        if lines > limit {
            problems.push(format!("{place}: {lines} lines, at most {limit}"));
        }
        for (name, lines) in functions(&text) {
            let limit = LONG_FUNCTIONS
                .iter()
                .find(|(file, function, _)| *file == place && *function == name)
                .map_or(FUNCTION_LINES_MAX, |(_, _, lines)| *lines);
            if lines > limit {
                problems.push(format!(
                    "{place}: fn {name} has {lines} lines, at most {limit}"
                ));
            }
        }
    }
    assert_none(&problems, "files and functions stay small");
}

/// Functions with their lengths, found by indentation: rustfmt closes a function where its `fn`
/// stands.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let Some(name) = code
            .split_once("fn ")
            .filter(|(before, _)| {
                before.split_whitespace().all(|word| {
                    word.starts_with("pub")
                        || ["const", "async", "unsafe", "in", "crate)", "super)"].contains(&word)
                })
            })
            .and_then(|(_, after)| after.split(['(', '<']).next())
        else {
            continue;
        };
        // A macro's function takes its name from where it is used.
        if name.starts_with('$') {
            continue;
        }
        let close = format!("{}}}", " ".repeat(indent));
        let length = lines.iter().skip(at).position(|line| *line == close);
        if let Some(length) = length {
            found.push((name.to_owned(), length + 1));
        }
    }
    found
}

#[test]
fn names_say_what_a_thing_is() {
    let mut problems = Vec::new();
    for (place, _) in files(".rs") {
        for part in Path::new(&place).components() {
            let part = part.as_os_str().to_string_lossy();
            if BANNED_NAMES.contains(&part.trim_end_matches(".rs")) {
                problems.push(place.clone());
            }
        }
    }
    assert_none(
        &problems,
        "drawers for everything (utils, common, helpers) are no names",
    );
}

#[test]
fn lines_fit_a_screen() {
    let mut problems = Vec::new();
    for (place, text) in files(".rs") {
        for (number, line) in text.lines().enumerate() {
            // Literals, links and the rows of tables cannot be broken.
            let whole = ["\"", "https://", "//! |", "/// |"]
                .iter()
                .any(|mark| line.contains(mark));
            if line.chars().count() > 100 && !whole {
                problems.push(format!("{place}:{}", number + 1));
            }
        }
    }
    assert_none(&problems, "a line has at most 100 columns");
}

#[test]
fn the_architecture_page_stays_a_page() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    assert!(
        text.lines().count() < 400,
        "ARCHITECTURE.md has {} lines",
        text.lines().count()
    );
    for (name, _) in EDGES {
        let shown = ["benches", "examples", "tests"].contains(&name) || text.contains(name);
        assert!(shown, "ARCHITECTURE.md does not mention {name}");
    }
}
