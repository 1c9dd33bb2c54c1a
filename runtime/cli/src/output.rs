//! The way to stdout and stderr.
//!
//! Invariants: stdout that is closed early (`| head`) is an error of its own kind, which `main`
//! takes for an end, not for a failure; an error's causes are said once each.
//! Never: panics because nobody reads.

use std::io::{self, BufWriter, StdoutLock, Write};

/// Stdout, buffered: for results. What is left is written by [`finish`](Output::finish).
#[derive(Debug)]
pub(crate) struct Output {
    stdout: BufWriter<StdoutLock<'static>>,
}

impl Output {
    pub(crate) fn new() -> Output {
        Output {
            stdout: BufWriter::new(io::stdout().lock()),
        }
    }

    /// Writes one line.
    pub(crate) fn line(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        writeln!(self.stdout, "{text}")
    }

    /// Writes what is left.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.stdout.flush()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stdout.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }
}

/// Rows under a heading, columns as wide as they need to be.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[&str]) -> Table {
        Table {
            rows: vec![heading.iter().map(|text| (*text).to_owned()).collect()],
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(crate) fn print(&self, output: &mut Output) -> io::Result<()> {
        self.lines()
            .into_iter()
            .try_for_each(|line| output.line(line))
    }

    fn lines(&self) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths);
            let padded: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            padded.join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

/// Whether the reader of stdout has gone.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Says on stderr what went wrong.
pub(crate) fn complain(error: &anyhow::Error) {
    note(format_args!("error: {}", describe(error)));
}

/// One line on stderr.
pub(crate) fn note(text: impl std::fmt::Display) {
    // Nobody is there to hear that nobody is there.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// The error and those causes that it does not already quote.
fn describe(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let reason = next.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_lines_end_without_blanks() {
        let mut table = Table::new(&["topic", "partitions"]);
        table.row(vec!["orders.enriched".to_owned(), "4".to_owned()]);
        table.row(vec!["\u{fc}".to_owned(), "12".to_owned()]);
        assert_eq!(
            table.lines(),
            [
                "topic            partitions",
                "orders.enriched  4",
                "\u{fc}                12"
            ]
        );
    }

    #[test]
    fn a_cause_is_said_once() {
        let inner = io::Error::other("disk on fire");
        let quoted = anyhow::Error::new(inner).context("cannot write: disk on fire");
        assert_eq!(describe(&quoted), "cannot write: disk on fire");
        let silent = anyhow::Error::new(io::Error::other("disk on fire")).context("cannot write");
        assert_eq!(describe(&silent), "cannot write: disk on fire");
    }

    #[test]
    fn only_a_closed_pipe_ends_quietly() {
        let closed = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_closed_pipe(&closed));
        assert!(!is_closed_pipe(&anyhow::anyhow!("broken pipe")));
    }
}
