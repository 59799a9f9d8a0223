//! Parses answers by the rule of the gym_cards games in the reference implementation.

/// Returns the index in `actions` of the action that a response names. The answer in lower case, from the first
/// `"action":` on (without one, only its last character), must contain exactly one of them, anywhere. An action `10` is
/// removed before the others are searched for, so that it does not count as `1`.
pub fn json_action(actions: &[&str], response: &str) -> Option<usize> {
    let lower = response.to_lowercase();
    let from = match lower.find("\"action\":") {
        Some(key) => key,
        None => lower.char_indices().next_back().map_or(0, |(last, _)| last),
    };
    let mut rest = lower[from..].to_owned();
    let ten = actions.contains(&"10") && rest.contains("10");
    if ten {
        rest = rest.replace("10", "");
    }
    let mut named = (0..actions.len()).filter(|&i| rest.contains(actions[i]) || (ten && actions[i] == "10"));
    let action = named.next()?;
    named.next().is_none().then_some(action)
}

/// Returns the index in `actions` of a line that is the command itself; white space and case are ignored.
pub fn raw_action(actions: &[&str], line: &str) -> Option<usize> {
    let line = line.trim().to_lowercase();
    actions.iter().position(|a| *a == line)
}
