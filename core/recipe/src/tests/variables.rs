//! Variables of the environment and merge keys.

use super::*;

fn variable(name: &str) -> Option<String> {
    let set = [
        ("LR", "3e-4"),
        ("MODELS", "/data/models"),
        ("COUNT", "7"),
        ("NUMBER_NAME", "2024"),
        ("EMPTY", ""),
        ("TRICKY", "a: b # no\n- c"),
        ("YES", "true"),
        ("NOTHING", "~"),
        ("API_KEY", "sk-secret"),
        ("RETRIEVER", "http://me:secret@host/search"),
        ("PLAIN", "hf_secretsecretsecretsecret"),
        ("MAX_TOKENS", "64"),
    ];
    set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
}

#[test]
fn variables_are_replaced_before_a_value_is_read() -> Result<()> {
    let folder = Folder::default();
    // The value of a key of a plugin, and the value read.
    let cases = [
        ("${LR}", serde_json::json!(3e-4)),
        ("\"${LR}\"", "3e-4".into()),
        ("'${LR}'", "3e-4".into()),
        ("${COUNT}", 7.into()),
        ("${COUNT}0", 70.into()),
        ("${MODELS}/qwen", "/data/models/qwen".into()),
        ("{path: ${MODELS}/qwen, size: ${COUNT}}", serde_json::json!({"path": "/data/models/qwen", "size": 7})),
        ("[${COUNT}, ${LR}, ${MISSING:-x}]", serde_json::json!([7, 3e-4, "x"])),
        ("${MISSING:-0.5}", 0.5.into()),
        ("${EMPTY:-0.5}", 0.5.into()),
        ("${EMPTY}", serde_json::Value::Null),
        ("${MISSING:-}", serde_json::Value::Null),
        ("${MISSING:-${COUNT}}", 7.into()),
        ("${MISSING:-a, b]}", "a, b]".into()),
        ("${YES}", true.into()),
        ("${NOTHING}", serde_json::Value::Null),
        ("${TRICKY}", "a: b # no\n- c".into()),
        ("$${COUNT}", "${COUNT}".into()),
        ("'$$${COUNT}'", "$${COUNT}".into()),
        ("'cost $5, $$ and {x}'", "cost $5, $$ and {x}".into()),
        ("'${{ price }}'", "${{ price }}".into()),
        ("${MAX_TOKENS}", 64.into()),
        ("|\n    one ${COUNT}\n    two", "one 7\ntwo\n".into()),
        ("x # ${MISSING}", "x".into()),
    ];
    for (written, wanted) in cases {
        let text = WHOLE.replace("config: {gamma: 0.95}", &format!("config:\n   odd: {written}"));
        let recipe = folder.load_with(&folder.write("r.yaml", &text), &[], &variable)?;
        assert_eq!(recipe.estimator.config["odd"], wanted, "{written}");
        // The saved recipe needs no variable.
        let again = folder.load(&folder.write("again.yaml", &recipe.to_yaml()?), &[])?;
        assert_eq!(again, recipe, "{written}");
    }
    let recipe =
        folder.load_with(&folder.write("r.yaml", WHOLE), &["update.lr=${LR}", "eval={tasks: ${COUNT}}"], &variable)?;
    assert_eq!((recipe.update.lr, recipe.eval.tasks), (3e-4, EvalTasks::Panel(7)));
    Ok(())
}

#[test]
fn a_wrong_variable_is_refused_with_place_and_remedy() {
    let folder = Folder::default();
    for (written, parts) in [
        ("${MISSING}", &["r.yaml:18:7", "MISSING is not set", "`${MISSING:-value}`"][..]),
        ("'${MISSING}'", &["r.yaml:18:7", "MISSING is not set"]),
        ("${EMPTY}", &["r.yaml:18:3", "`update.lr` must be a number, but is empty"]),
        ("${MODELS}", &["r.yaml:18:3", "the text \"/data/models\""]),
        ("${data.lr}", &["r.yaml:18:7", "names no variable", "YAML anchor"]),
        ("${oc.env:LR}", &["names no variable"]),
        ("${}", &["names no variable"]),
        ("${LR", &["r.yaml:18:7", "no closing brace"]),
        ("${API_KEY}", &["r.yaml:18:7", "API_KEY has the name of a secret"]),
        ("${RETRIEVER}", &["RETRIEVER holds a password or a key"]),
        ("${PLAIN}", &["PLAIN holds a password or a key"]),
    ] {
        let text = WHOLE.replace("lr: 1e-3\n  optimizer", &format!("lr: {written}\n  optimizer"));
        let error = folder.load_with(&folder.write("r.yaml", &text), &[], &variable).expect_err("a wrong variable");
        let message = format!("{error:#}");
        assert!(parts.iter().all(|part| message.contains(part)), "{written}: {message}");
        assert!(!message.contains("secretsecret") && !message.contains("me:secret"), "{message}");
    }
}

#[test]
fn merge_keys_take_keys_of_anchors() -> Result<()> {
    let folder = Folder::default();
    let shared = "x-shared: &a {layers: 2, heads: 4}\nx-more: &b\n  heads: 8\n  kv_heads: 2\n";
    let with = |merge: &str| {
        WHOLE.replacen("layers: 2, heads: 4, kv_heads: 2,", merge, 1).replacen(
            "iterations",
            &format!("{shared}iterations"),
            1,
        )
    };
    let plain = folder.load(&folder.write("plain.yaml", WHOLE), &[])?;
    for merge in [
        "<<: [*a, *b],",
        "<<: *a, kv_heads: 2,",
        "<<: *b, layers: 2, heads: 4,",
        "<<: {layers: 2, heads: 4, kv_heads: 2},",
    ] {
        let text = with(merge);
        assert_eq!(folder.load(&folder.write("r.yaml", &text), &[])?, plain, "{merge}");
    }
    // A file that extends another replaces merged keys too, and so does an argument.
    folder.write("base.yaml", &with("<<: [*a, *b],"));
    let over = folder.write("over.yaml", "extends: base.yaml\nmodel: {new: {layers: 3}}\n");
    let recipe = folder.load(&over, &["model.new.heads=8"])?;
    assert_eq!(recipe.model.new.map(|new| (new.layers, new.heads, new.kv_heads)), Some((3, 8, 2)));
    for (merge, parts) in [
        ("<<: [*a, *b], layer: 3,", ["r.yaml:7", "`model.new.layer`"]),
        ("<<: 3,", ["r.yaml:7:50", "`<<` takes a map"]),
        ("<<: [*a, 3],", ["r.yaml:7:50", "`<<` takes a map"]),
        ("<<: *a, heads: 4, <<: *b,", ["r.yaml:7", "one takes a list"]),
        ("\"<<\": *a,", ["r.yaml:7", "unknown key `model.new.<<`"]),
        ("<<: [*a, *b], heads: 5,", ["r.yaml:7", "multiple of twice `heads`"]),
        ("<<: *c,", ["r.yaml:7", "unknown anchor"]),
    ] {
        let message = folder.error(&with(merge), &[]);
        assert!(parts.iter().all(|part| message.contains(part)), "{merge}: {message}");
    }
    // A merged key keeps the place where it is written.
    let message = folder.error(&with("<<: [*a, *b],").replace("layers: 2", "layers: x"), &[]);
    assert!(message.starts_with("r.yaml:1:15: `model.new.layers` must be"), "{message}");
    Ok(())
}

#[test]
fn no_message_repeats_a_secret() {
    let folder = Folder::default();
    for set in [
        "wandb.api_key=hush",
        "wandb={api_key: hush}",
        "wandb={\"api_key\":\"hush\"",
        "env.config.password=[hush",
        "model.path={a: http://me:hush@host}",
        "rollout.hf_token=hush",
        "tasks=sk-hush5hush5hush5hush",
    ] {
        let message = folder.error(WHOLE, &[set]);
        assert!(message.contains("***") && !message.contains("hush"), "{message}");
    }
    for set in ["rollout.max_tokens=1", "update.aggregation=token", "updat.lr=1"] {
        assert!(folder.error(WHOLE, &[set]).contains(set), "{set}");
    }
}
