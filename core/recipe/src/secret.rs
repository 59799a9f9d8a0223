//! Names and values that look like secrets, which no message repeats and no saved recipe may hold.

/// Words that announce a secret wherever a name has them.
const ANYWHERE: [&str; 7] = ["apikey", "credential", "credentials", "passphrase", "passwd", "password", "secret"];

/// Words that announce a secret at the end of a name.
const AT_END: [&str; 5] = ["auth", "key", "pass", "secrets", "token"];

/// Ends of names whose value only says where a secret is.
const PLACES: [&str; 4] = ["dir", "file", "folder", "path"];

/// First characters of keys that well-known services issue.
const ISSUED: [&str; 8] = ["AKIA", "ghp_", "gho_", "github_pat_", "glpat-", "hf_", "sk-", "xoxb-"];

/// Shortest such key.
const SHORTEST_KEY: usize = 20;

/// True for a key or a variable that is named as a secret, such as `api_key` or `HF_TOKEN`; not for `max_tokens`.
pub(super) fn is_name(name: &str) -> bool {
    let name = name.to_lowercase();
    let is_word = |word: &&str| !word.is_empty() && !word.bytes().all(|b| b.is_ascii_digit());
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(is_word).collect();
    let Some(last) = words.last().filter(|last| !PLACES.contains(last)) else { return false };
    AT_END.contains(last) || words.iter().any(|word| ANYWHERE.contains(word))
}

/// True for an address such as `http://user:password@host`, and for a key as well-known services issue them.
pub(super) fn is_value(text: &str) -> bool {
    let has_password = |rest: &str| {
        let authority = rest.split(['/', '?', '#', ' ']).next().unwrap_or_default();
        authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
    };
    let is_issued = |word: &str| {
        let rest = ISSUED.iter().find_map(|start| Some((start, word.strip_prefix(start)?)));
        rest.is_some_and(|(start, rest)| word.len() >= SHORTEST_KEY && is_random(start, rest))
    };
    text.split("://").skip(1).any(has_password) || text.split([' ', '"', '\'', ',', '/', '=', ':']).any(is_issued)
}

/// True for the rest of a key; not for words such as `hf_models_qwen2.5` or `sk-learn-games-v2`.
fn is_random(start: &str, rest: &str) -> bool {
    let has = |is: fn(&u8) -> bool| rest.bytes().any(|byte| is(&byte));
    match start {
        "AKIA" | "ghp_" | "gho_" | "hf_" => rest.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        "sk-" => has(u8::is_ascii_digit) && (!rest.contains('-') || has(u8::is_ascii_uppercase)),
        _ => true,
    }
}

/// An argument `key=value` for a message, without a value that may be secret.
pub fn masked(argument: &str) -> String {
    let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
    // The keys of a map such as `wandb={api_key: 123}`.
    let holds_key = value.rsplit_once(':').is_some_and(|(keys, _)| {
        let names = keys.split(':').map(|part| part.trim_end_matches([' ', '"', '\'']));
        names.filter_map(|part| part.rsplit([' ', '"', '\'', '{', ',']).next()).any(is_name)
    });
    match !value.is_empty() && (is_name(key) || is_value(value) || holds_key) {
        true => format!("{key}=***"),
        false => argument.into(),
    }
}
