//! Regular expressions that clients send: RE2's, matched against a whole name as Kafka does.
//!
//! ```text
//! orders\.(new|old)-[0-9]+    anchors change nothing: the whole name has to match
//! ```
//!
//! Deviations: Unicode classes (`\pL`) and `\C` are refused; a few forms that RE2 has not (`\<`,
//! `a**`) are not. A class with an unescaped `[`, `&&`, `--` or `~~` in it, and a lone `{`, are
//! refused.
//!
//! Invariants: a match takes memory by the states times the groups of an expression, and time by
//! its states times the name's length; all of them are bounded here.
//! Never: backtracks.

use regex_lite::{Regex, RegexBuilder};

/// Longest expression, in bytes.
const TEXT_BYTES_MAX: usize = 8 << 10;
/// How large it may be once it is compiled, in bytes: 32 for most characters.
const COMPILED_BYTES_MAX: usize = 64 << 10;
/// How deep its groups may nest.
const DEPTH_MAX: u32 = 50;
/// How many groups it may have that are not `(?:…)`, and itself: 1 KiB a state, at most.
const GROUPS_MAX: usize = 33;
/// How large a small one is, compiled.
const SMALL_BYTES: usize = 4 << 10;
/// The longest name that a small one is matched against, which is the longest there is.
const SMALL_NAME_MAX: usize = 32 << 10;
/// The longest name that any other is matched against: as many steps.
const NAME_MAX: usize = SMALL_NAME_MAX * SMALL_BYTES / COMPILED_BYTES_MAX;

/// An expression that is understood.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    regex: Regex,
    name_bytes_max: usize,
}

impl Pattern {
    /// Reads an expression, or tells what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Pattern, String> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("it is longer than {TEXT_BYTES_MAX} bytes"));
        }
        let plain = without_quotes(text);
        // By itself first: parentheses that do not match would close those around it.
        compile(&plain, COMPILED_BYTES_MAX)?;
        let whole = format!("^(?:{plain})$");
        let (regex, name_bytes_max) = match compile(&whole, SMALL_BYTES) {
            Ok(regex) => (regex, SMALL_NAME_MAX),
            Err(_) => (compile(&whole, COMPILED_BYTES_MAX)?, NAME_MAX),
        };
        if regex.captures_len() > GROUPS_MAX {
            let max = GROUPS_MAX - 1;
            return Err(format!(
                "it has more than {max} groups; write (?:…) for (…)"
            ));
        }
        Ok(Pattern {
            regex,
            name_bytes_max,
        })
    }

    /// Whether it matches all of the name. A name of more than 2,048 bytes, which no topic has, is
    /// matched by expressions of about a hundred characters only.
    pub(crate) fn matches(&self, name: &str) -> bool {
        name.len() <= self.name_bytes_max && self.regex.is_match(name)
    }
}

fn compile(text: &str, bytes_max: usize) -> Result<Regex, String> {
    let regex = RegexBuilder::new(text)
        .size_limit(bytes_max)
        .nest_limit(DEPTH_MAX)
        .build();
    regex.map_err(|error| error.to_string())
}

/// The expression with what stands between `\Q` and `\E` escaped one by one: Java quotes so.
fn without_quotes(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\\') {
        let (before, from) = rest.split_at(at);
        plain.push_str(before);
        if let Some(quoted) = from.strip_prefix("\\Q") {
            let (quoted, after) = quoted.split_once("\\E").unwrap_or((quoted, ""));
            plain.push_str(&regex_lite::escape(quoted));
            rest = after;
        } else {
            let escaped = from.chars().take(2).map(char::len_utf8).sum();
            let (escaped, after) = from.split_at(escaped);
            plain.push_str(escaped);
            rest = after;
        }
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn the_whole_name_has_to_match() {
        for (pattern, name, matches) in [
            ("orders", "orders", true),
            ("orders", "orders2", false),
            ("orders", "my-orders", false),
            ("^orders.*", "orders.enriched", true),
            ("^orders\\..*$", "orders-enriched", false),
            ("orders\\..+", "orders.", false),
            (".*-.*-1", "a-b-c-1", true),
            ("", "", true),
            ("", "a", false),
            ("a|ab", "ab", true),
            ("a|b", "ab", false),
            ("(^t.*)", "topic", true),
            ("(^a$)|(^b.*)", "bc", true),
            (".*(?:rders).*", "orders2", true),
        ] {
            let parsed = Pattern::parse(pattern).expect("it is understood");
            assert_eq!(parsed.matches(name), matches, "{pattern} on {name}");
        }
    }

    #[test]
    fn classes_repetitions_groups_and_escapes_mean_what_they_mean_in_re2() {
        for (pattern, name, matches) in [
            ("[tT][oO]pic_0+[12]_[^_]+", "tOpic_001_x", true),
            ("[tT][oO]pic_0+[12]_[^_]+", "topic_001_x_y", false),
            ("[a-c]{2,3}", "abc", true),
            ("[a-c]{2,3}", "abcd", false),
            ("(ab)+c?", "ababc", true),
            ("a.??b", "ab", true),
            ("\\d+\\.\\w+", "42.x_Y", true),
            ("\\d", "٣", false),
            ("[^\\s\\d-]*", "orders", true),
            ("[[:alpha:]]+", "orders", true),
            ("(?i)ORDERS", "orders", true),
            ("(?P<kind>new|old)-(orders)", "old-orders", true),
            ("\\Qa.b(\\E.", "a.b(c", true),
            ("\\Qa.b", "axb", false),
            ("\\\\Q", "\\Q", true),
        ] {
            let parsed = Pattern::parse(pattern).expect("it is understood");
            assert_eq!(parsed.matches(name), matches, "{pattern} on {name}");
        }
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for pattern in [
            "[ab", "(a", "a)(b", "a)", "*a", "a{3,2}", "\\", "(?<=a)b", "(?!a)b", "\\1", "\\pL",
            "(?x)a #",
        ] {
            let refused = Pattern::parse(pattern);
            assert!(refused.is_err(), "{pattern} {refused:?}");
        }
    }

    #[test]
    fn hostile_expressions_are_refused_by_their_size_and_the_rest_stays_cheap() {
        let deep = format!("{}a{}", "(".repeat(60), ")".repeat(60));
        let long = "a".repeat(9_000);
        // Their memory is taken at the first match, by states times groups.
        let groups = "()".repeat(585);
        let absent_groups = "(){0}".repeat(1_000) + "()";
        for pattern in [
            "a{100000}",
            "((a{100}){100}){100}",
            "(?:){1000000000}",
            deep.as_str(),
            long.as_str(),
            groups.as_str(),
            absent_groups.as_str(),
        ] {
            assert!(Pattern::parse(pattern).is_err(), "{pattern}");
        }
        // Exponential where alternatives are tried one by one.
        let nested = Pattern::parse("(a*)*(a?){200}b").expect("it is small");
        assert!(!nested.matches(&"a".repeat(249)));
        let groups = Pattern::parse(&"(a)".repeat(32)).expect("they are few");
        assert!(groups.matches(&"a".repeat(32)));
    }

    #[test]
    fn the_longest_names_are_matched_by_small_expressions_only() {
        let small = Pattern::parse("(x-)?a{2}.*[a-z]").expect("it is small");
        let large = Pattern::parse("(?:a?){200}a*").expect("it is not too large");
        for (bytes, by_large) in [(249, true), (2_048, true), (2_049, false), (32_767, false)] {
            let name = "a".repeat(bytes);
            assert!(small.matches(&name), "{bytes}");
            assert_eq!(large.matches(&name), by_large, "{bytes}");
        }
    }
}
