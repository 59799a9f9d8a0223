//! Rewrites the source of a chat template into the part of Jinja that minijinja reads.
//!
//! - Line ends become `\n`, as jinja2 reads them.
//! - `{% generation %}` and `{% endgeneration %}`, by which transformers marks the text of an assistant, become an empty
//!   `with`: a scope of its own, as in transformers, that prints its body.
//! - A text literal before the operator `%` becomes `text | percent(values)`: minijinja has the operator for numbers alone.
//!
//! Nothing changes in comments, in `raw` blocks and inside of text literals.

use std::borrow::Cow;

/// The filter that formats as Python's `%`.
pub const PERCENT: &str = "percent";

/// A template with line ends as jinja2 reads them.
pub fn unix_lines(source: &str) -> Cow<'_, str> {
    match source.contains('\r') {
        true => source.replace("\r\n", "\n").replace('\r', "\n").into(),
        false => source.into(),
    }
}

/// The rewritten template.
pub fn rewritten(source: &str) -> String {
    let source = unix_lines(source);
    let mut out = String::with_capacity(source.len());
    let mut rest = &source[..];
    while let Some(begin) = rest.match_indices('{').map(|(place, _)| place).find(|&place| opens(&rest[place..])) {
        out.push_str(&rest[..begin]);
        rest = &rest[begin..];
        let length = match &rest[..2] {
            "{#" => rest.find("#}").map_or(rest.len(), |end| end + 2),
            "{{" => expression(rest, "}}", &mut out),
            _ => block(rest, &mut out),
        };
        if rest.starts_with("{#") {
            out.push_str(&rest[..length]);
        }
        rest = &rest[length..];
    }
    out.push_str(rest);
    out
}

fn opens(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|open| text.starts_with(open))
}

/// Writes the block at the start of the text; returns its length.
fn block(text: &str, out: &mut String) -> usize {
    let signs = |c: char| matches!(c, '-' | '+');
    let Some(end) = text.find("%}") else { return expression(text, "%}", out) };
    let inner = text[2..end].strip_prefix(signs).unwrap_or(&text[2..end]);
    let inner = inner.strip_suffix(signs).unwrap_or(inner).trim();
    let new = match inner {
        "raw" => {
            let length = end_of_raw(&text[end + 2..]).map_or(text.len(), |length| end + 2 + length);
            out.push_str(&text[..length]);
            return length;
        }
        "generation" => "with",
        "endgeneration" => "endwith",
        _ => return expression(text, "%}", out),
    };
    out.push_str(&text[..end + 2].replacen(inner, new, 1));
    end + 2
}

/// Length of a raw block's text, its end tag included.
fn end_of_raw(text: &str) -> Option<usize> {
    text.match_indices("{%").find_map(|(begin, _)| {
        let inside = &text[begin + 2..];
        let end = inside.find("%}")?;
        let name = inside[..end].trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+'));
        (name == "endraw").then_some(begin + 2 + end + 2)
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Text,
    /// A name or a number.
    Word,
    Open,
    Close,
    Sign(char),
}

/// A token: its kind and its place in the source.
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
}

/// Writes a tag up to its end, `close`; returns its length.
fn expression(text: &str, close: &str, out: &mut String) -> usize {
    let (tokens, length) = tokens(text, close);
    let mut inserts: Vec<(usize, usize, String)> = Vec::new();
    for (index, token) in tokens.iter().enumerate().skip(1) {
        if token.kind == Kind::Sign('%') && tokens[index - 1].kind == Kind::Text {
            let last = operand(&tokens, index + 1);
            if let Some(last) = last {
                inserts.push((token.start, token.end, format!("|{PERCENT}(")));
                inserts.push((tokens[last].end, tokens[last].end, ")".into()));
            }
        }
    }
    inserts.sort_by_key(|&(start, ..)| start);
    let mut done = 0;
    for (start, end, new) in inserts {
        out.push_str(&text[done..start]);
        out.push_str(&new);
        done = end;
    }
    out.push_str(&text[done..length]);
    length
}

/// The last token of the operand that begins at `first`, with its filters, as jinja2 binds them.
fn operand(tokens: &[Token], first: usize) -> Option<usize> {
    let kind = |index: usize| tokens.get(index).map(|token| token.kind);
    let mut at = first;
    while matches!(kind(at), Some(Kind::Sign('-' | '+'))) {
        at += 1;
    }
    let mut last = match kind(at)? {
        Kind::Text | Kind::Word => at,
        Kind::Open => closing(tokens, at)?,
        _ => return None,
    };
    loop {
        last = match (kind(last + 1), kind(last + 2)) {
            (Some(Kind::Open), _) => closing(tokens, last + 1)?,
            (Some(Kind::Sign('.' | '|')), Some(Kind::Word)) => last + 2,
            _ => return Some(last),
        };
    }
}

/// The bracket that closes the one at `open`.
fn closing(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(index);
        }
    }
    None
}

/// The tokens of a tag and its length. As in jinja2, its end does not count inside of texts and brackets.
fn tokens(text: &str, close: &str) -> (Vec<Token>, usize) {
    let (mut tokens, mut depth, mut at) = (Vec::new(), 0usize, 2);
    while let Some(c) = text[at..].chars().next() {
        if depth == 0 && text[at..].starts_with(close) {
            return (tokens, at + close.len());
        }
        let start = at;
        at += c.len_utf8();
        let kind = match c {
            ' ' | '\n' | '\t' => continue,
            '\'' | '"' => {
                let mut escaped = false;
                let length = text[at..].char_indices().find_map(|(place, inner)| {
                    let ends = inner == c && !escaped;
                    escaped = inner == '\\' && !escaped;
                    ends.then_some(place + 1)
                });
                at = length.map_or(text.len(), |length| at + length);
                Kind::Text
            }
            '(' | '[' | '{' => {
                depth += 1;
                Kind::Open
            }
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                Kind::Close
            }
            c if c.is_alphanumeric() || c == '_' => {
                let more = text[at..].find(|c: char| !(c.is_alphanumeric() || c == '_'));
                at = more.map_or(text.len(), |more| at + more);
                Kind::Word
            }
            c => Kind::Sign(c),
        };
        tokens.push(Token { kind, start, end: at });
    }
    (tokens, text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tags_and_operators_are_rewritten() {
        for (source, wanted) in [
            ("a\r\nb\rc\n", "a\nb\nc\n"),
            ("{%- generation -%} x {%+ endgeneration %}", "{%- with -%} x {%+ endwith %}"),
            ("{%generation%}{{ 'a' }}{% endgeneration -%}", "{%with%}{{ 'a' }}{% endwith -%}"),
            (
                "{% raw %}{% generation %}{{ 'a' % b }}{%- endraw -%}{% generation %}",
                "{% raw %}{% generation %}{{ 'a' % b }}{%- endraw -%}{% with %}",
            ),
            ("{# {% generation %} {{ #}{% generation %}", "{# {% generation %} {{ #}{% with %}"),
            (
                "{{ '{% generation %}' }}{{ \"}} \\\" {% raw %}\" }}",
                "{{ '{% generation %}' }}{{ \"}} \\\" {% raw %}\" }}",
            ),
            (
                "{% set generation = {'a': {'b': 1}} %}{{ generation }}",
                "{% set generation = {'a': {'b': 1}} %}{{ generation }}",
            ),
            ("{{ '%s' % x }}", "{{ '%s' |percent( x) }}"),
            ("{{ '%s-%s' % (a, b[0]) ~ '!' }}", "{{ '%s-%s' |percent( (a, b[0])) ~ '!' }}"),
            ("{% set y = \"%d\" % m['n'].k|int + 1 %}", "{% set y = \"%d\" |percent( m['n'].k|int) + 1 %}"),
            ("{{ a % b }}{% if loop.index0 % 2 == 0 %}", "{{ a % b }}{% if loop.index0 % 2 == 0 %}"),
            ("100 % { sure } {", "100 % { sure } {"),
            ("{{ unclosed 'x", "{{ unclosed 'x"),
            ("{% raw %} never", "{% raw %} never"),
        ] {
            assert_eq!(rewritten(source), wanted, "{source}");
        }
    }
}
