//! The regular expressions by which members may subscribe: literals, `\.`, `.`, `.*`, `.+`, and
//! alternatives of these.
//!
//! ```text
//! ^orders\..*|(customers)    anchors and parentheses around an alternative are allowed and change
//!                            nothing: the whole name has to match
//! ```
//!
//! Invariants: what is accepted means what it means in RE2; matching an alternative takes no more
//! steps than the product of the lengths.
//! Never: accepts what it would match differently.

/// An expression that is understood: its alternatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(Vec<Vec<Piece>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Literal(char),
    /// `.`
    One,
    /// `.*`
    Many,
}

impl Pattern {
    /// Reads an expression; `None` if there is more in it than is understood.
    pub(crate) fn parse(text: &str) -> Option<Pattern> {
        let alternatives = without_parentheses(text).split('|');
        alternatives
            .map(Self::alternative)
            .collect::<Option<_>>()
            .map(Pattern)
    }

    fn alternative(text: &str) -> Option<Vec<Piece>> {
        let text = without_parentheses(text);
        let text = text.strip_prefix('^').unwrap_or(text);
        let text = text.strip_suffix('$').unwrap_or(text);
        let mut pieces = Vec::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\\' => match chars.next()? {
                    escaped @ ('.' | '-' | '_') => pieces.push(Piece::Literal(escaped)),
                    _ => return None,
                },
                '.' => match chars.next_if(|next| matches!(next, '*' | '+')) {
                    Some('*') => pieces.push(Piece::Many),
                    Some(_) => pieces.extend([Piece::One, Piece::Many]),
                    None => pieces.push(Piece::One),
                },
                c if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') => {
                    pieces.push(Piece::Literal(c));
                }
                _ => return None,
            }
            if chars
                .peek()
                .is_some_and(|next| matches!(next, '*' | '+' | '?' | '{'))
            {
                return None;
            }
        }
        Some(pieces)
    }

    /// Whether it matches all of a topic's name.
    pub(crate) fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|alternative| matches(alternative, name))
    }
}

/// Without one pair around all of it, if there are no others inside.
fn without_parentheses(text: &str) -> &str {
    let inner = text
        .strip_prefix('(')
        .and_then(|text| text.strip_suffix(')'));
    inner
        .filter(|inner| !inner.contains(['(', ')']))
        .unwrap_or(text)
}

fn matches(pieces: &[Piece], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut piece) = (0, 0);
    // Where the last `.*` stands, and how much of the name it has taken.
    let mut retry: Option<(usize, usize)> = None;
    while at < name.len() {
        match pieces.get(piece) {
            Some(Piece::Many) => {
                retry = Some((piece, at));
                piece += 1;
            }
            Some(Piece::One) => (at, piece) = (at + 1, piece + 1),
            Some(Piece::Literal(c)) if name.get(at) == Some(c) => {
                (at, piece) = (at + 1, piece + 1);
            }
            _ => {
                let Some((many, taken)) = retry else {
                    return false;
                };
                retry = Some((many, taken + 1));
                (at, piece) = (taken + 1, many + 1);
            }
        }
    }
    let mut rest = pieces.iter().skip(piece);
    rest.all(|piece| *piece == Piece::Many)
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn the_whole_name_has_to_match() {
        for (pattern, name, matches) in [
            ("orders", "orders", true),
            ("orders", "orders2", false),
            ("orders.", "orders2", true),
            ("^orders.*", "orders.enriched", true),
            ("^orders\\..*$", "orders-enriched", false),
            ("orders\\..+", "orders.", false),
            ("orders\\..+", "orders.x", true),
            (".*-.*-1", "a-b-c-1", true),
            (".*-.*-1", "a-1", false),
            ("a.*b.*c", "aXbXbXc", true),
            ("a.*b.*c", "aXbXbX", false),
            ("", "", true),
            ("", "a", false),
            (".*", "a", true),
            ("(^t.*)", "topic", true),
            ("(^orders\\..*)", "orders.x", true),
            ("(^a$)|(^b.*)", "bc", true),
            ("a|b", "b", true),
            ("(a|b)", "b", true),
            ("a|b", "ab", false),
        ] {
            let parsed = Pattern::parse(pattern).expect("it is understood");
            assert_eq!(parsed.matches(name), matches, "{pattern} on {name}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for pattern in [
            "(a|b)c",
            "[ab]",
            "((a))",
            "(a",
            "(a.*)b(c)",
            "(?i)a",
            "(a\\)",
            "a*",
            "a+",
            "a?",
            ".?",
            ".*?",
            ".{2}",
            "\\d",
            "a\\",
            "a$b",
            "^^a",
            "a b",
            "ä",
        ] {
            assert_eq!(Pattern::parse(pattern), None, "{pattern}");
        }
    }
}
