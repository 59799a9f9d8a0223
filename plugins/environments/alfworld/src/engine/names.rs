//! Names of objects: `Drawer|-01.10|…` becomes `drawer 2`.

use std::collections::HashMap;

use super::facts::Object;

const ESCAPES: [(&str, &str); 5] =
    [("_bar_", "|"), ("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")];

/// Names the objects that occur in facts, by ALFWorld's rule. An object's class is the part before the first bar (with
/// `basin` after it if the id has that word). The objects of a class are numbered down from their count in the order of
/// their ids. An id without a bar stays, with a blank after it.
///
/// `occurring` must be in the order of the ids.
pub fn names(objects: &[String], occurring: &[Object]) -> Vec<Option<String>> {
    let class = |id: &str| {
        let plain = ESCAPES.iter().fold(id.to_owned(), |text, (escape, sign)| text.replace(escape, sign));
        let (class, _) = plain.split_once('|')?;
        Some(format!("{class}{}", if id.contains("basin") { "basin" } else { "" }))
    };
    let classes: Vec<Option<String>> = occurring.iter().map(|&o| class(&objects[o as usize])).collect();
    let mut left: HashMap<&str, usize> = HashMap::new();
    for class in classes.iter().flatten() {
        *left.entry(class).or_default() += 1;
    }
    let mut names = vec![None; objects.len()];
    for (&object, class) in occurring.iter().zip(&classes) {
        let name = match class.as_deref().map(|class| (class, left.get_mut(class))) {
            Some((class, Some(left))) => {
                *left -= 1;
                format!("{class} {}", *left + 1)
            }
            _ => format!("{} ", objects[object as usize]),
        };
        names[object as usize] = Some(name);
    }
    names
}
