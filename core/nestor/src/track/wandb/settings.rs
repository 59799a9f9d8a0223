//! The settings of a tracked run. As with W&B's own client, a key of the recipe counts before W&B's variable of the
//! environment, and the variable before the default.

use std::env;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::Result;
use wandb_rs::{Mode, Settings};

use crate::input_error;
use crate::recipe::{Wandb, WandbMode, all_of};

/// Longest name in W&B: of a project, an entity, a run, a group or a job type.
const LONGEST_NAME: usize = 128;

/// Longest tag in W&B (wandb/sdk/wandb_settings.py).
const LONGEST_TAG: usize = 64;

/// Most tags of a run, more than anybody can read.
const MOST_TAGS: usize = 256;

/// Characters of a wrong text that a message shows.
const SHOWN: usize = 40;

/// Longest notes in characters.
const LONGEST_NOTES: usize = 65_536;

/// The variables of the environment; empty ones count as unset.
pub fn variables(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// The settings of a section of the recipe, for a run in `dir`. Refuses names that W&B refuses at the first upload.
pub fn settings(section: &Wandb, dir: &Path, variable: impl Fn(&str) -> Option<String>) -> Result<Settings> {
    let text = |key: &Option<String>, name| key.clone().or_else(|| variable(name)).unwrap_or_default();
    let project = match text(&section.project, "WANDB_PROJECT") {
        unset if unset.is_empty() && section.project.is_none() => "nestor".to_string(),
        project => checked_name(project, ("wandb.project", section.project.is_some()), "WANDB_PROJECT")?,
    };
    let entity = match text(&section.entity, "WANDB_ENTITY") {
        unset if unset.is_empty() && section.entity.is_none() => unset,
        entity => checked_name(entity, ("wandb.entity", section.entity.is_some()), "WANDB_ENTITY")?,
    };
    let listed = || {
        let tags =
            |tags: String| tags.split(',').map(|tag| tag.trim().to_string()).filter(|tag| !tag.is_empty()).collect();
        variable("WANDB_TAGS").map(tags)
    };
    // A folder may have any name.
    let own_name = || {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        name.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_NAME).collect::<String>()
    };
    let tags: Vec<String> = section.tags.clone().or_else(listed).unwrap_or_default();
    let name = section.name.clone().or_else(|| variable("WANDB_NAME"));
    let (group, notes) = (text(&section.group, "WANDB_RUN_GROUP"), text(&section.notes, "WANDB_NOTES"));
    let job_type = variable("WANDB_JOB_TYPE").unwrap_or_else(|| "train".into());
    let of = |key: &str, in_recipe: bool, variable: &str| match in_recipe {
        true => format!("recipe key `{key}`"),
        false => format!("variable {variable}"),
    };
    let of_name = of("wandb.name", section.name.is_some(), "WANDB_NAME");
    let of_tags = of("wandb.tags", section.tags.is_some(), "WANDB_TAGS");
    let long = (tags.len() > MOST_TAGS)
        .then(|| input_error!("{of_tags} has {} tags; give a run at most {MOST_TAGS}", tags.len()));
    let texts = [
        name.as_ref().and_then(|name| check_text(name, &of_name, 1..=LONGEST_NAME)),
        check_text(&group, &of("wandb.group", section.group.is_some(), "WANDB_RUN_GROUP"), 0..=LONGEST_NAME),
        check_text(&job_type, "variable WANDB_JOB_TYPE", 1..=LONGEST_NAME),
        check_text(
            &notes.replace(['\n', '\r', '\t'], " "),
            &of("wandb.notes", section.notes.is_some(), "WANDB_NOTES"),
            0..=LONGEST_NOTES,
        ),
        long,
        // One wrong tag is enough of an answer.
        tags.iter().find_map(|tag| check_text(tag, &of_tags, 1..=LONGEST_TAG)),
    ];
    if let Some(error) = all_of(texts.into_iter().flatten().collect()) {
        return Err(error);
    }
    Ok(Settings {
        // W&B makes the folder `wandb` in the one that its variable names.
        dir: variable("WANDB_DIR").map_or_else(|| dir.to_path_buf(), PathBuf::from).join("wandb"),
        mode: mode(section, &variable)?,
        project,
        entity,
        name: name.unwrap_or_else(own_name),
        group,
        job_type,
        notes,
        tags,
        id: id(section, &variable)?,
        wandb: installed(),
        ..Settings::default()
    })
}

fn mode(section: &Wandb, variable: impl Fn(&str) -> Option<String>) -> Result<Mode> {
    let mode = match (section.mode, variable("WANDB_MODE").as_deref()) {
        (Some(mode), _) => mode,
        (None, Some("online" | "live")) => WandbMode::Live,
        (None, Some("offline" | "dryrun") | None) => WandbMode::Offline,
        (None, Some("disabled")) => WandbMode::Disabled,
        (None, Some(other)) => {
            return Err(input_error!(
                "variable WANDB_MODE is {other:?}; set it to online, offline or disabled, or set the recipe key `wandb.mode`"
            ));
        }
    };
    Ok(match mode {
        WandbMode::Offline => Mode::Offline,
        WandbMode::Live => Mode::Live,
        WandbMode::Disabled => Mode::Disabled,
    })
}

/// Refuses a text of which W&B stores no such length, or with control characters. `source` begins the message.
fn check_text(text: &str, source: &str, lengths: RangeInclusive<usize>) -> Option<anyhow::Error> {
    let (length, most) = (text.chars().count(), lengths.end());
    let begin: String = text.chars().take(SHOWN).collect();
    let more = if length > SHOWN { "…" } else { "" };
    if length == 0 && !lengths.contains(&0) {
        return Some(input_error!("{source} is empty or has an empty part; W&B takes 1 to {most} characters"));
    }
    if length > *most {
        return Some(input_error!("{source} holds \"{begin}{more}\" of {length} characters; W&B takes at most {most}"));
    }
    let control = text.chars().find(|c| c.is_control())?;
    Some(input_error!("{source} holds {begin:?}{more} with the character {control:?}; use printable characters alone"))
}

/// Refuses a name that W&B refuses.
fn checked_name(name: String, (key, in_recipe): (&str, bool), variable: &str) -> Result<String> {
    let forbidden = name.chars().find(|c| c.is_control() || "/\\#?%:".contains(*c));
    let why = match (name.chars().count(), forbidden) {
        (0, _) => "is empty".to_string(),
        (length, _) if length > LONGEST_NAME => format!("has {length} characters, and W&B takes {LONGEST_NAME}"),
        (_, Some(c)) => format!("is {name:?}, and W&B takes no {c:?} in it"),
        _ => return Ok(name),
    };
    let source = if in_recipe { format!("recipe key `{key}`") } else { format!("variable {variable}") };
    Err(input_error!("{source} {why}; choose another name"))
}

/// The run's id. W&B cannot use every text: it becomes a file name and part of an address.
fn id(section: &Wandb, variable: impl Fn(&str) -> Option<String>) -> Result<Option<String>> {
    let source = if section.id.is_some() { "recipe key `wandb.id`" } else { "variable WANDB_RUN_ID" };
    let Some(id) = section.id.clone().or_else(|| variable("WANDB_RUN_ID")) else { return Ok(None) };
    let plain = id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    match plain && (1..=64).contains(&id.len()) {
        true => Ok(Some(id)),
        false => Err(input_error!("{source} is {id:?}; use 1 to 64 letters, digits, - and _")),
    }
}

/// The `wandb` program in the `.venv` that `scripts/setup.sh` makes, where PATH has none.
fn installed() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    if env::split_paths(&path).any(|dir| dir.join("wandb").is_file()) {
        return None;
    }
    let exe = env::current_exe().ok()?;
    exe.ancestors().map(|dir| dir.join(".venv/bin/wandb")).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const VARIABLES: [(&str, &str); 10] = [
        ("WANDB_PROJECT", "lab"),
        ("WANDB_ENTITY", "team"),
        ("WANDB_NAME", "seed 3"),
        ("WANDB_RUN_GROUP", "seeds"),
        ("WANDB_NOTES", "a note"),
        ("WANDB_TAGS", "a, b"),
        ("WANDB_MODE", "online"),
        ("WANDB_JOB_TYPE", "sweep"),
        ("WANDB_DIR", "/elsewhere"),
        ("WANDB_RUN_ID", "run-7"),
    ];

    fn of(section: serde_json::Value, variables: &[(&str, &str)]) -> Result<Settings> {
        let section: Wandb = serde_json::from_value(section)?;
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
        settings(&section, Path::new("runs/mine"), find)
    }

    fn texts(settings: &Settings) -> [&str; 6] {
        let Settings { project, entity, name, group, job_type, notes, .. } = settings;
        [project, entity, name, group, job_type, notes]
    }

    #[test]
    fn a_variable_counts_before_a_default_and_after_the_recipe() -> Result<()> {
        let settings = of(json!({}), &[])?;
        assert_eq!(texts(&settings), ["nestor", "", "mine", "", "train", ""]);
        assert_eq!((settings.mode, settings.dir), (Mode::Offline, "runs/mine/wandb".into()));

        let settings = of(json!({}), &VARIABLES)?;
        assert_eq!(texts(&settings), ["lab", "team", "seed 3", "seeds", "sweep", "a note"]);
        assert_eq!((settings.mode, settings.dir), (Mode::Live, "/elsewhere/wandb".into()));
        assert_eq!((settings.tags, settings.id), (vec!["a".into(), "b".into()], Some("run-7".into())));

        let keys = json!({"project": "own", "entity": "me", "name": "n", "group": "g", "notes": "", "tags": [],
            "id": "mine", "mode": "dryrun"});
        let settings = of(keys, &VARIABLES)?;
        assert_eq!(texts(&settings), ["own", "me", "n", "g", "sweep", ""]);
        assert_eq!((settings.mode, settings.tags), (Mode::Offline, Vec::new()));
        assert_eq!(settings.id.as_deref(), Some("mine"));
        assert_eq!(of(json!({"mode": "online"}), &[])?.mode, Mode::Live);
        Ok(())
    }

    #[test]
    fn a_refusal_names_the_key_or_the_variable() {
        let refusal = |section, variables: &[(&str, &str)]| of(section, variables).expect_err("refused").to_string();
        assert!(refusal(json!({"project": "a/b"}), &[]).starts_with("recipe key `wandb.project` is \"a/b\""));
        assert!(refusal(json!({"project": ""}), &VARIABLES).starts_with("recipe key `wandb.project` is empty"));
        assert!(refusal(json!({}), &[("WANDB_PROJECT", "a/b")]).starts_with("variable WANDB_PROJECT is \"a/b\""));
        assert!(refusal(json!({}), &[("WANDB_MODE", "onlien")]).contains("WANDB_MODE is \"onlien\"; set it to online"));
        assert!(refusal(json!({}), &[("WANDB_RUN_ID", "a b")]).starts_with("variable WANDB_RUN_ID"));
        assert!(refusal(json!({"id": ""}), &VARIABLES).starts_with("recipe key `wandb.id` is \"\""));
        let long = |length: usize| "ä".repeat(length);
        for (section, parts) in [
            (json!({"tags": [""]}), ["`wandb.tags` is empty", "1 to 64"]),
            (json!({"tags": [long(65)]}), ["`wandb.tags` holds", "65 characters"]),
            (json!({"tags": ["a\nb"]}), ["`wandb.tags` holds \"a\\nb\"", "'\\n'"]),
            (json!({"tags": vec!["a"; 1000]}), ["1000 tags", "at most 256"]),
            (json!({"name": long(129)}), ["`wandb.name` holds", "129 characters"]),
            (json!({"name": ""}), ["`wandb.name` is empty", "1 to 128"]),
            (json!({"name": "a\u{0}"}), ["`wandb.name` holds", "'\\0'"]),
            (json!({"group": long(129)}), ["`wandb.group` holds", "129 characters"]),
            (json!({"group": "a\nb"}), ["`wandb.group` holds", "'\\n'"]),
            (json!({"notes": "a\u{0}"}), ["`wandb.notes` holds", "'\\0'"]),
            (json!({"project": long(129)}), ["`wandb.project` has 129", "128"]),
            (json!({"entity": "a\nb"}), ["`wandb.entity` is", "'\\n'"]),
        ] {
            let message = refusal(section, &[]);
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
        let both = refusal(json!({"name": "", "tags": [""]}), &[]);
        assert!(both.starts_with("2 problems:") && both.contains("`wandb.name`"), "{both}");
        let of_variable = refusal(json!({}), &[("WANDB_TAGS", &format!("a,{}", long(65)))]);
        assert!(of_variable.starts_with("variable WANDB_TAGS"), "{of_variable}");
        assert!(refusal(json!({}), &[("WANDB_JOB_TYPE", &*long(129))]).starts_with("variable WANDB_JOB_TYPE"));
        let longest = json!({"tags": [long(64)], "name": long(128), "group": long(128), "notes": "two\nlines"});
        assert!(of(longest, &[]).is_ok());
    }
}
