//! Answers that a file holds as the text of a list: as JSON, as Python prints a list, or as NumPy prints an array.

use std::iter::Peekable;
use std::str::Chars;

use anyhow::{Context, Result, ensure};

/// The answers in a text: those of the list that it shows, or the text itself.
///
/// # Errors
/// If it begins as a list of quoted texts and is none. Such a text was never meant as one answer.
pub fn answers(text: String) -> Result<Vec<String>> {
    let list = text.trim();
    let list = list.strip_prefix("array(").map_or(list, str::trim_start);
    let Some(inner) = list.strip_prefix('[').map(str::trim_start) else { return Ok(vec![text]) };
    if !inner.starts_with(['\'', '"', ']']) {
        return Ok(vec![text]);
    }
    if let Ok(read) = serde_json::from_str(list) {
        return Ok(read);
    }
    printed(inner).with_context(|| {
        let start: String = text.chars().take(60).collect();
        format!("the answers begin as the text of a list and are none: {start:?}; write a list of texts")
    })
}

/// The texts of a list that Python or NumPy printed, from the first one on.
fn printed(text: &str) -> Result<Vec<String>> {
    let (mut chars, mut all) = (text.chars().peekable(), Vec::new());
    loop {
        match chars.next().context("it has no end")? {
            quote @ ('\'' | '"') => all.push(quoted(&mut chars, quote)?),
            ',' => {}
            ']' => break,
            blank if blank.is_whitespace() => {}
            other => anyhow::bail!("it holds {other:?} outside of quotation marks"),
        }
    }
    // An array's type may follow.
    let rest: String = chars.filter(|c| !c.is_whitespace()).collect();
    let fits = rest.is_empty() || rest == ")" || (rest.starts_with(",dtype=") && rest.ends_with(')'));
    ensure!(fits, "{rest:?} follows its end");
    Ok(all)
}

fn quoted(chars: &mut Peekable<Chars>, quote: char) -> Result<String> {
    let mut text = String::new();
    loop {
        match chars.next().context("a quotation mark is missing")? {
            c if c == quote => return Ok(text),
            '\\' => match chars.next().context("it ends in a backslash")? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                code @ ('x' | 'u' | 'U') => {
                    let count = match code {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let digits: String = chars.by_ref().take(count).collect();
                    let char = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                    text.push(char.with_context(|| format!("\\{code}{digits} is no character"))?);
                }
                c @ ('\\' | '\'' | '"') => text.push(c),
                other => text.extend(['\\', other]),
            },
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_list_is_a_list() -> Result<()> {
        for (text, wanted) in [
            (r#"["a"]"#, &["a"][..]),
            (r#" ["a", "b\u00e9"] "#, &["a", "bé"]),
            ("['a']", &["a"]),
            ("['a', \"b's\"]", &["a", "b's"]),
            (r"['a\'b', 'c\\d\n\xe9\u00e9']", &["a'b", "c\\d\néé"]),
            ("['a' 'b'\n 'c d']", &["a", "b", "c d"]),
            ("array(['a', 'b'], dtype=object)", &["a", "b"]),
            ("array(['a'])", &["a"]),
            ("[]", &[]),
            ("[citation needed]", &["[citation needed]"]),
            ("[1, 2]", &["[1, 2]"]),
            ("a, b", &["a, b"]),
            ("\"a\"", &["\"a\""]),
            ("", &[""]),
        ] {
            assert_eq!(answers(text.to_string())?, wanted, "{text}");
        }
        for (text, why) in [
            ("['a', None]", "'N' outside"),
            ("['a', 3]", "'3' outside"),
            ("['a'", "has no end"),
            ("['a", "quotation mark"),
            ("['a'] and more", "follows its end"),
            (r"['\xzz']", "no character"),
            (r#"["a", ["b"]]"#, "'[' outside"),
        ] {
            let message = format!("{:#}", answers(text.to_string()).expect_err(text));
            assert!(message.contains(why) && message.contains("write a list of texts"), "{message}");
        }
        Ok(())
    }
}
