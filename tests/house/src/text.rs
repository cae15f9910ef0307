//! Lines and comments.

use proc_macro2::{LineColumn, TokenStream, TokenTree};

/// A line of a file, from 1, and what is wrong with it.
pub type Flaw = (usize, String);

/// Lines with more characters than `width`.
pub fn too_long(text: &str, width: usize) -> Vec<Flaw> {
    let lengths = text.lines().map(|line| line.chars().count()).enumerate();
    lengths.filter(|(_, length)| *length > width).map(|(at, length)| (at + 1, format!("{length} characters"))).collect()
}

/// The comments of a file, each with the line that it begins on. Lines of comment that follow each other are one. What
/// is in a string is no comment.
pub fn comments(text: &str) -> Vec<(usize, String)> {
    let text = without_literals(text);
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut continues = None;
    for (at, line) in text.lines().enumerate() {
        let Some(start) = line.find("//") else { continue };
        let comment = &line[start..];
        let alone = line[..start].trim().is_empty();
        let marks = comment.len() - comment.trim_start_matches(['/', '!']).len();
        let (mark, words) = comment.split_at(marks);
        match found.last_mut() {
            // An empty line of comment begins a new paragraph, but not a new comment.
            Some((_, whole)) if alone && continues == Some((at, mark.to_owned())) => {
                whole.push(' ');
                whole.push_str(words.trim());
            }
            _ => found.push((at + 1, words.trim().to_owned())),
        }
        continues = Some((at + 1, mark.to_owned()));
    }
    found
}

/// Blanks out strings and characters. Text that is no Rust stays as it is.
fn without_literals(text: &str) -> String {
    let Ok(tokens) = text.parse::<TokenStream>() else { return text.to_owned() };
    let mut lines: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
    blank(tokens, &mut lines);
    lines.into_iter().map(String::from_iter).collect::<Vec<_>>().join("\n")
}

fn blank(tokens: TokenStream, lines: &mut [Vec<char>]) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => blank(group.stream(), lines),
            TokenTree::Literal(literal) => {
                let (start, end) = (literal.span().start(), literal.span().end());
                if !is_comment(lines, start) {
                    for at in start.line..=end.line {
                        let line = &mut lines[at - 1];
                        let from = if at == start.line { start.column } else { 0 };
                        let to = if at == end.line { end.column } else { line.len() };
                        line[from..to].fill(' ');
                    }
                }
            }
            _ => {}
        }
    }
}

/// A comment that documents an item reaches us as a string.
fn is_comment(lines: &[Vec<char>], start: LineColumn) -> bool {
    let line = &lines[start.line - 1];
    line.get(start.column) == Some(&'/')
}
