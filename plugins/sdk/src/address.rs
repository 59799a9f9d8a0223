//! Addresses of servers in messages.

/// Returns an address as a message may show it: without user, password and query, which may be secrets.
pub fn shown_address(address: &str) -> String {
    let start = address.find("//").map_or(0, |slashes| slashes + 2);
    // The last `@`, since a password that should have been escaped may hold any character.
    let (scheme, rest) = address.split_at(start);
    let (user, place) = rest.rsplit_once('@').map_or(("", rest), |(_, place)| ("***@", place));
    match place.split_once('?') {
        Some((place, _)) => format!("{scheme}{user}{place}?***"),
        None => format!("{scheme}{user}{place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::shown_address;

    #[test]
    fn a_shown_address_has_no_secrets() {
        for (address, shown) in [
            ("http://h:8000/retrieve", "http://h:8000/retrieve"),
            ("http://me:secret@h/x", "http://***@h/x"),
            ("ws://me:se/c@ret@h:1", "ws://***@h:1"),
            ("me:secret@h", "***@h"),
            ("http:/me:secret@h", "***@h"),
            ("http://h/x?key=secret", "http://h/x?***"),
            ("", ""),
        ] {
            assert_eq!(shown_address(address), shown);
        }
    }
}
