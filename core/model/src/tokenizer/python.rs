//! Python in chat templates: methods and filters that jinja2 has and minijinja lacks, or has otherwise.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter};
use minijinja_contrib::pycompat;
use regex::Regex;
use serde_json::Value as Json;

use super::bounded::within;
use super::jinja::PERCENT;

/// Adds the methods and filters to an environment.
pub fn add_to(environment: &mut Environment) -> anyhow::Result<()> {
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", to_json);
    environment.add_filter("truncate", truncate);
    environment.add_filter(PERCENT, percent);
    environment.add_filter("string", |value: &Value| text_of(value));
    environment.add_filter("center", |text: &Value, width: Option<usize>| {
        Ok::<_, Error>(centred(&text.to_string(), within(width.unwrap_or(80), "a width")?, ' '))
    });
    environment.add_filter("replace", |text: &Value, old: &str, new: &Value, most: Option<usize>| {
        let (text, new) = (text.to_string(), new.to_string());
        most.map_or_else(|| text.replace(old, &new), |most| text.replacen(old, &new, most))
    });
    environment.set_formatter(|out, state, value| match text_of_number(value) {
        Some(text) => write!(out, "{text}").map_err(Error::from),
        None => escape_formatter(out, state, value),
    });
    // Python's types: nothing iterates over None, and a text and a map are sequences too.
    environment.add_test("iterable", |value: &Value| match value.kind() {
        ValueKind::None | ValueKind::Number | ValueKind::Bool => false,
        ValueKind::Undefined => true,
        _ => value.try_iter().is_ok(),
    });
    let sequence = [ValueKind::String, ValueKind::Seq, ValueKind::Map, ValueKind::Undefined];
    environment.add_test("sequence", move |value: &Value| sequence.contains(&value.kind()));
    // Python's \w: letters, numbers and the underscore.
    let word = Regex::new(r"[\p{L}\p{N}_]+")?;
    environment.add_filter("wordcount", move |text: &Value| word.find_iter(&text.to_string()).count());
    environment.add_function("cycler", minijinja_contrib::globals::cycler);
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    Ok(())
}

fn wrong(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// A method of a Python type.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => match of_text(text, name, args)? {
            Some(result) => Ok(result),
            None => pycompat::unknown_method_callback(state, value, name, args),
        },
        (None, ValueKind::Seq) if name == "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            let place = value.try_iter()?.position(|item| item == *wanted);
            place.map(Value::from).ok_or_else(|| wrong(format!("{wanted} is not in the list")))
        }
        (None, ValueKind::Seq | ValueKind::Map) if name == "copy" => Ok(value.clone()),
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// A method of `str`; none for one that minijinja's extension has.
fn of_text(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let pair = |args: &[Value]| -> Result<(usize, char), Error> {
        let (width, fill): (i64, Option<&str>) = from_args(args)?;
        let mut fill = fill.unwrap_or(" ").chars();
        match (fill.next(), fill.next()) {
            (Some(fill), None) => Ok((within(usize::try_from(width).unwrap_or(0), "a width")?, fill)),
            _ => Err(wrong("the fill must be one character")),
        }
    };
    let length = text.chars().count();
    let padded = |left: usize, right: usize, fill: char| {
        let run = |count: usize| std::iter::repeat_n(fill, count);
        Value::from(run(left).chain(text.chars()).chain(run(right)).collect::<String>())
    };
    Ok(Some(match name {
        "rsplit" => rsplit(text, args)?,
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            let rest = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            rest.unwrap_or(text).into()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(wrong("empty separator"));
            }
            let found = if name == "partition" { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match found {
                Some((before, after)) => [before, separator, after],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from).to_vec()))
        }
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            let zeros = within(usize::try_from(width).unwrap_or(0), "a width")?.saturating_sub(length);
            let sign = text.starts_with(['+', '-']).into();
            format!("{}{}{}", &text[..sign], "0".repeat(zeros), &text[sign..]).into()
        }
        "ljust" => pair(args).map(|(width, fill)| padded(0, width.saturating_sub(length), fill))?,
        "rjust" => pair(args).map(|(width, fill)| padded(width.saturating_sub(length), 0, fill))?,
        "center" => {
            let (width, fill) = pair(args)?;
            centred(text, width, fill).into()
        }
        "title" => titled(text).into(),
        "swapcase" => {
            let swapped = |c: char| match c.is_uppercase() {
                true => c.to_lowercase().collect::<String>(),
                false => c.to_uppercase().collect(),
            };
            text.chars().map(swapped).collect::<String>().into()
        }
        "casefold" => text.to_lowercase().replace('ß', "ss").into(),
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let byte = if name == "index" { text.find(part) } else { text.rfind(part) };
            let byte = byte.ok_or_else(|| wrong("substring not found"))?;
            text[..byte].chars().count().into()
        }
        "isdecimal" => (!text.is_empty() && text.chars().all(|c| c.is_ascii_digit())).into(),
        "isidentifier" => {
            let starts = |c: char| c.is_alphabetic() || c == '_';
            (text.starts_with(starts) && text.chars().all(|c| c.is_alphanumeric() || c == '_')).into()
        }
        "expandtabs" => {
            let (size,): (Option<i64>,) = from_args(args)?;
            expand_tabs(text, within(usize::try_from(size.unwrap_or(8)).unwrap_or(0), "a tab")?).into()
        }
        "format" => {
            check_widths(text)?;
            return Ok(None);
        }
        _ => return Ok(None),
    }))
}

fn centred(text: &str, width: usize, fill: char) -> String {
    let room = width.saturating_sub(text.chars().count());
    // As CPython rounds.
    let left = room / 2 + (room & width & 1);
    let run = |count: usize| std::iter::repeat_n(fill, count);
    run(left).chain(text.chars()).chain(run(room - left)).collect()
}

/// The method `title`: a letter after any other character is a capital.
fn titled(text: &str) -> String {
    let (mut out, mut inside) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, most, options): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        Some(separator) => Some(separator),
        None => options.get("sep")?,
    };
    let most = most.map_or_else(|| options.get::<Option<i64>>("maxsplit"), |most| Ok(Some(most)))?;
    options.assert_all_used()?;
    let most = usize::try_from(most.unwrap_or(-1)).unwrap_or(usize::MAX - 1);
    let separator = separator.filter(|separator| !separator.is_none());
    let mut parts: Vec<&str> = match &separator {
        Some(separator) => match separator.as_str() {
            Some("") => return Err(wrong("empty separator")),
            Some(separator) => text.rsplitn(most + 1, separator).collect(),
            None => return Err(wrong("the separator must be a text")),
        },
        None => {
            let (mut parts, mut rest) = (Vec::new(), text.trim_end());
            while parts.len() < most && !rest.is_empty() {
                let start = rest.char_indices().rev().find(|(_, c)| c.is_whitespace());
                let start = start.map_or(0, |(place, c)| place + c.len_utf8());
                parts.push(&rest[start..]);
                rest = rest[..start].trim_end();
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            parts
        }
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

fn expand_tabs(text: &str, size: usize) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' if size == 0 => {}
            '\t' => {
                let blanks = size - column % size;
                out.extend(std::iter::repeat_n(' ', blanks));
                column += blanks;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    out
}

/// Limits every number in a format.
pub fn check_widths(text: &str) -> Result<(), Error> {
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty());
    for number in numbers {
        within(number.parse().unwrap_or(usize::MAX), "a width")?;
    }
    Ok(())
}

/// Python's operator `%` of a text: a tuple holds several values, anything else is one.
fn percent(text: &str, values: &Value) -> Result<String, Error> {
    check_widths(text)?;
    let tuple = values.is_tuple();
    let values = if tuple { values.try_iter()?.collect() } else { vec![values.clone()] };
    format(FormatStyle::Printf, text, &values)
}

/// Arguments by their places or their names. One that is None counts as left out.
fn arguments<const N: usize>(given: Rest<ValueOrKwargs>, names: [&str; N]) -> Result<[Option<Value>; N], Error> {
    let given = given.into_values();
    let (placed, named): (&[Value], Kwargs) = from_args(&given)?;
    if placed.len() > N {
        return Err(Error::new(ErrorKind::TooManyArguments, format!("at most {N} arguments are read")));
    }
    let mut all = std::array::from_fn(|place| placed.get(place).cloned());
    for (argument, name) in all.iter_mut().zip(names) {
        if named.has(name) {
            *argument = Some(named.get(name)?);
        }
        *argument = argument.take().filter(|value| !value.is_none());
    }
    named.assert_all_used()?;
    Ok(all)
}

/// A count that is not negative.
fn count(value: Option<Value>, default: usize) -> Result<usize, Error> {
    value.map_or(Ok(default), usize::try_from)
}

/// jinja2's filter, with its leeway of 5.
fn truncate(text: &Value, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [length, killwords, end, leeway] = arguments(given, ["length", "killwords", "end", "leeway"])?;
    let (length, leeway) = (count(length, 255)?, count(leeway, 5)?);
    let killwords = killwords.is_some_and(|killwords| killwords.is_true());
    let end = end.map_or_else(|| "...".to_string(), |end| end.to_string());
    let text = text.to_string();
    let room = length.checked_sub(end.chars().count());
    let room = room.ok_or_else(|| wrong(format!("truncate: the length {length} is below that of its end")))?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let cut: String = text.chars().take(room).collect();
    let cut = if killwords { &cut } else { cut.rsplit_once(' ').map_or(&cut[..], |(before, _)| before) };
    Ok(format!("{cut}{end}"))
}

/// The form of a JSON text.
struct Form {
    ascii: bool,
    /// The text of one level; none for one line.
    indent: Option<String>,
    separators: (String, String),
    sorted: bool,
}

/// Python's `json.dumps`, with the arguments that transformers gives to it: `ensure_ascii` is false by default.
fn to_json(value: &Value, given: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sorted] = arguments(given, names)?;
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let indent = match indent {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(within(usize::try_from(i64::try_from(indent)?).unwrap_or(0), "an indent")?),
        }),
    };
    let separators = match separators {
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
        Some(pair) => {
            let pair: Vec<Value> = pair.try_iter()?.collect();
            match &pair[..] {
                [item, key] => (item.to_string(), key.to_string()),
                _ => return Err(wrong("tojson: separators must be two texts")),
            }
        }
    };
    let form = Form { ascii: is_true(ascii), indent, separators, sorted: is_true(sorted) };
    let value = serde_json::to_value(value).map_err(|error| wrong(error.to_string()))?;
    let mut out = String::new();
    write(&value, &form, 0, &mut out);
    Ok(out.into())
}

fn write(value: &Json, form: &Form, level: usize, out: &mut String) {
    let line = |level: usize, out: &mut String| {
        if let Some(indent) = &form.indent {
            out.push('\n');
            out.push_str(&indent.repeat(level));
        }
    };
    match value {
        Json::String(text) => write_text(text, form.ascii, out),
        Json::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(number) => out.push_str(&float(number)),
            None => out.push_str(&number.to_string()),
        },
        Json::Array(items) if !items.is_empty() => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { &form.separators.0 } else { "" });
                line(level + 1, out);
                write(item, form, level + 1, out);
            }
            line(level, out);
            out.push(']');
        }
        Json::Object(map) if !map.is_empty() => {
            let mut entries: Vec<_> = map.iter().collect();
            if form.sorted {
                entries.sort_by_key(|(key, _)| *key);
            }
            out.push('{');
            for (index, (key, item)) in entries.into_iter().enumerate() {
                out.push_str(if index > 0 { &form.separators.0 } else { "" });
                line(level + 1, out);
                write_text(key, form.ascii, out);
                out.push_str(&form.separators.1);
                write(item, form, level + 1, out);
            }
            line(level, out);
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

fn write_text(text: &str, ascii: bool, out: &mut String) {
    let quoted = Json::from(text).to_string();
    if !ascii {
        out.push_str(&quoted);
        return;
    }
    for c in quoted.chars() {
        match c.is_ascii() {
            true => out.push(c),
            false => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
        }
    }
}

/// A number that Python writes otherwise than minijinja.
fn text_of_number(value: &Value) -> Option<String> {
    let number =
        f64::try_from(value.clone()).ok().filter(|_| value.kind() == ValueKind::Number && !value.is_integer())?;
    number.is_finite().then(|| float(number))
}

fn text_of(value: &Value) -> String {
    text_of_number(value).unwrap_or_else(|| value.to_string())
}

/// A number as Python's `repr` has it.
fn float(number: f64) -> String {
    let size = number.abs();
    if size == 0.0 || (1e-4..1e16).contains(&size) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    match text.split_once('e') {
        Some((digits, power)) => {
            let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
            format!("{digits}e{sign}{power:0>2}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::jinja::rewritten;

    /// Texts that jinja2 3.1.6 prints in transformers' environment: `render_jinja_template` of `{{ EXPRESSION }}`.
    const PRINTED: [(&str, &str); 36] = [
        ("'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"),
        ("' a b  c '.rsplit(None, 1)", "[' a b', 'c']"),
        ("'a b'.rsplit(maxsplit=1) ~ 'a,b'.rsplit(sep=',')", "['a', 'b']['a', 'b']"),
        ("'abc'.removeprefix('a') ~ 'abc'.removesuffix('c') ~ 'abc'.removeprefix('x')", "bcababc"),
        ("'a=b=c'.partition('=') ~ 'a=b=c'.rpartition('=')", "('a', '=', 'b=c')('a=b', '=', 'c')"),
        ("'abc'.partition('=') ~ 'abc'.rpartition('=')", "('abc', '', '')('', '', 'abc')"),
        ("'7'.zfill(3) ~ '-7'.zfill(4) ~ '+1'.zfill(1) ~ 'é'.zfill(3)", "007-007+100é"),
        ("'ab'.ljust(5, '.') ~ 'ab'.rjust(4, '*') ~ 'é'.ljust(3,'-')", "ab...**abé--"),
        ("'ab'.center(5, '*') ~ 'abc'.center(6, '*') ~ 'a'.center(4, '*')", "**ab**abc***a**"),
        ("'%s-%d' % ('x', 3)", "x-3"),
        ("\"%05.1f|%-4s|%x\" % (2.25, 'a', 255)", "002.2|a   |ff"),
        ("'%s' % 'a'|upper ~ '!'", "A!"),
        ("'%s' % [1, 'a'] ~ '%d%%' % 5", "[1, 'a']5%"),
        ("'Hello wide  world, naïve_x 12'|wordcount", "5"),
        ("'foo bar baz qux'|truncate(9)", "foo..."),
        ("'foo bar baz qux'|truncate(9, True)", "foo ba..."),
        ("'foo bar baz qux'|truncate(11)", "foo bar baz qux"),
        ("'foo bar baz qux'|truncate(11, False, '...', 0)", "foo bar..."),
        ("'foo bar baz qux'|truncate(length=5, end='!', leeway=0, killwords=true)", "foo !"),
        ("{'b': 'é', 'a': [1, 2.0, none, true]}|tojson", r#"{"b": "é", "a": [1, 2.0, null, true]}"#),
        ("{'b': 'é😀'}|tojson(ensure_ascii=true)", r#"{"b": "\u00e9\ud83d\ude00"}"#),
        ("{'b': 1, 'a': {'d': 1, 'c': []}}|tojson(sort_keys=true)", r#"{"a": {"c": [], "d": 1}, "b": 1}"#),
        ("{'b': [1, 2], 'a': {}}|tojson(separators=(',', ':'))", r#"{"b":[1,2],"a":{}}"#),
        (
            "{'b': [1, {'x': 'y'}], 'a': {}}|tojson(indent=2)",
            "{\n  \"b\": [\n    1,\n    {\n      \"x\": \"y\"\n    }\n  ],\n  \"a\": {}\n}",
        ),
        ("[1, [2]]|tojson(indent='\t') ~ [1]|tojson(indent=0)", "[\n\t1,\n\t[\n\t\t2\n\t]\n][\n1\n]"),
        ("'<a href=\"x\">&'|tojson", r#""<a href=\"x\">&""#),
        ("1e20|tojson ~ 1e-7|tojson ~ 1.5|tojson", "1e+201e-071.5"),
        ("1e20", "1e+20"),
        ("0.00001", "1e-05"),
        ("none is iterable", "False"),
        ("1 is iterable or [] is iterable and x is iterable", "True"),
        ("'a' is sequence and {} is sequence", "True"),
        ("[1, 2, 3].index(2) ~ 'abcabc'.rindex('c')", "15"),
        ("'a\tb'.expandtabs(4)", "a   b"),
        ("\"they're bill's\".title()", "They'Re Bill'S"),
        ("'aaa'|replace('a', 'b', 1) ~ 'a'|center(5)", "baa  a  "),
    ];

    #[test]
    fn expressions_print_what_jinja2_prints() -> anyhow::Result<()> {
        let mut environment = Environment::new();
        add_to(&mut environment)?;
        for (expression, wanted) in PRINTED {
            let printed = environment.render_str(&rewritten(&format!("{{{{ {expression} }}}}")), ());
            assert_eq!(printed.as_deref().ok(), Some(wanted), "{expression}: {printed:?}");
        }
        for (expression, why) in [
            ("'a'.ljust(99999)", "a width of 99999 is more than"),
            ("'%99999d' % 1", "a width of 99999"),
            ("'{:99999}'.format(1)", "a width of 99999"),
            ("[1]|tojson(indent=99999)", "an indent of 99999"),
            ("'a'.partition('')", "empty separator"),
            ("'a'|tojson(indnt=2)", "indnt"),
        ] {
            let error = environment.render_str(&rewritten(&format!("{{{{ {expression} }}}}")), ()).expect_err(why);
            assert!(format!("{error:#}").contains(why), "{error:#}");
        }
        Ok(())
    }
}
