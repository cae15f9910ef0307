//! The part of Python's literals that `.npy` headers use: dictionaries, lists, tuples, strings, integers, booleans.

use crate::fault::{Result, malformed, too_much};

/// The deepest nesting. NumPy's own headers nest as deep as structured types do.
const DEPTH_MAX: usize = 32;

/// A literal.
#[derive(Debug, PartialEq)]
pub(crate) enum Literal {
    Text(String),
    Integer(u64),
    Bool(bool),
    Nothing,
    /// A list or a tuple.
    Sequence(Vec<Literal>),
    /// Keys are strings. Beside each value stands its source text.
    Dictionary(Vec<(String, Literal, String)>),
}

/// Reads a literal that is the whole text, white space aside.
pub(crate) fn parse(text: &str) -> Result<Literal> {
    let mut parser = Parser { text, at: 0 };
    let literal = parser.literal(0)?;
    parser.space();
    if parser.at < text.len() {
        return malformed("something follows the header's dictionary");
    }
    Ok(literal)
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    fn peek(&mut self) -> Option<char> {
        self.space();
        self.rest().chars().next()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let is = self.peek() == Some(wanted);
        if is {
            self.at += wanted.len_utf8();
        }
        is
    }

    fn expect(&mut self, wanted: char) -> Result<()> {
        if self.eat(wanted) { Ok(()) } else { malformed(format!("the header lacks a {wanted:?}")) }
    }

    fn literal(&mut self, depth: usize) -> Result<Literal> {
        if depth > DEPTH_MAX {
            return too_much(format!("the header nests deeper than {DEPTH_MAX}"));
        }
        match self.peek() {
            Some('{') => self.dictionary(depth),
            Some('[') => self.sequence('[', ']', depth),
            Some('(') => self.sequence('(', ')', depth),
            Some('\'' | '"') => self.text().map(Literal::Text),
            Some('0'..='9') => self.integer(),
            _ => self.word(),
        }
    }

    fn dictionary(&mut self, depth: usize) -> Result<Literal> {
        let mut items = Vec::new();
        self.expect('{')?;
        while !self.eat('}') {
            self.space();
            let key = self.text()?;
            self.expect(':')?;
            self.space();
            let start = self.at;
            let value = self.literal(depth + 1)?;
            items.push((key, value, self.text[start..self.at].to_owned()));
            if !self.eat(',') {
                self.expect('}')?;
                break;
            }
        }
        Ok(Literal::Dictionary(items))
    }

    fn sequence(&mut self, open: char, close: char, depth: usize) -> Result<Literal> {
        let mut items = Vec::new();
        self.expect(open)?;
        while !self.eat(close) {
            items.push(self.literal(depth + 1)?);
            if !self.eat(',') {
                self.expect(close)?;
                // Parentheses around one thing are not a tuple.
                if open == '(' && items.len() == 1 {
                    return items.pop().map_or_else(|| malformed("an empty header"), Ok);
                }
                break;
            }
        }
        Ok(Literal::Sequence(items))
    }

    fn text(&mut self) -> Result<String> {
        let mut chars = self.rest().char_indices();
        let Some((_, quote @ ('\'' | '"'))) = chars.next() else { return malformed("the header lacks a string") };
        let mut text = String::new();
        while let Some((index, char)) = chars.next() {
            match char {
                '\n' => break,
                '\\' => match chars.next() {
                    // What other escapes stand for is not needed here: only that the string goes on.
                    Some((_, char)) => text.extend(['\\', char]),
                    None => break,
                },
                char if char == quote => {
                    self.at += index + 1;
                    return Ok(text);
                }
                char => text.push(char),
            }
        }
        malformed("a string in the header does not end")
    }

    fn integer(&mut self) -> Result<Literal> {
        let digits = self.rest().len() - self.rest().trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number = self.rest()[..digits].parse();
        self.at += digits;
        // Python 2 wrote long integers so.
        if self.rest().starts_with('L') {
            self.at += 1;
        }
        number.map(Literal::Integer).or_else(|_| malformed("a number in the header is too large"))
    }

    fn word(&mut self) -> Result<Literal> {
        for (word, literal) in
            [("True", Literal::Bool(true)), ("False", Literal::Bool(false)), ("None", Literal::Nothing)]
        {
            if let Some(rest) = self.rest().strip_prefix(word)
                && !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
            {
                self.at += word.len();
                return Ok(literal);
            }
        }
        malformed("the header is no dictionary of plain values")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_numpy_writes() {
        let Literal::Dictionary(items) =
            parse("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3L), }   \n").unwrap()
        else {
            panic!("no dictionary")
        };
        assert_eq!(items[0], ("descr".into(), Literal::Text("<f4".into()), "'<f4'".into()));
        assert_eq!(items[1].1, Literal::Bool(false));
        assert_eq!(items[2].1, Literal::Sequence(vec![Literal::Integer(2), Literal::Integer(3)]));
        assert_eq!(parse("()").unwrap(), Literal::Sequence(vec![]));
        assert_eq!(parse("(3,)").unwrap(), Literal::Sequence(vec![Literal::Integer(3)]));
        assert_eq!(parse("(3)").unwrap(), Literal::Integer(3));
        assert_eq!(parse(r#"['a\'b', "c'd"]"#).unwrap().texts(), [r"a\'b", "c'd"]);
    }

    #[test]
    fn refuses_the_rest() {
        for text in ["", "{", "{'a'", "{'a': }", "{'a': 1", "[1 2]", "1 1", "__import__('os')", "{1: 2}", "'a\\", "'a"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("99999999999999999999").is_err());
        assert!(parse("Trueish").is_err());
        assert!(parse(&"[".repeat(1_000_000)).is_err());
    }

    impl Literal {
        fn texts(&self) -> Vec<&str> {
            let Literal::Sequence(items) = self else { return Vec::new() };
            items
                .iter()
                .filter_map(|item| if let Literal::Text(text) = item { Some(text.as_str()) } else { None })
                .collect()
        }
    }
}
