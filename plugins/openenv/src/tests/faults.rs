//! Faults of a server: each is survived, or ends the episode with a message that names the fault and the remedy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::OpenEnv;
use nestor_plugin::{Environment, Instance};
use serde_json::{Value, json};

use super::server::{Act, brief, count, error, open, serve, start, text};

/// The error of an episode: a reset, then steps.
fn error_of(world: &OpenEnv) -> String {
    let mut play = world.spawn().unwrap();
    let played = play.reset(world, start()).and_then(|_| {
        for action in ["a", "b", "c"] {
            play.step(world, action)?;
        }
        Ok(())
    });
    format!("{:#}", played.unwrap_err())
}

#[test]
fn a_session_that_is_lost_in_an_episode_is_replayed() {
    // The first connection ends before its third message, the second one at once, the third one stays.
    let url = serve(|connection, number, message| match (connection, number) {
        (0, 2) | (1, 0) => vec![Act::Drop],
        _ => count(number, message),
    });
    let world = open(&url, json!({})).unwrap();
    let mut play = world.spawn().unwrap();
    let first = play.reset(&world, start()).unwrap();
    assert_eq!((brief(&first), first.metrics["reconnects"]), (("start 3", 0.0, false), 0.0));
    assert_eq!(brief(&play.step(&world, "a").unwrap()), ("1: a", 0.0, false));
    let second = play.step(&world, "b").unwrap();
    assert_eq!((brief(&second), second.metrics["reconnects"]), (("2: b", 0.0, false), 1.0));
    let last = play.step(&world, "c").unwrap();
    assert_eq!((brief(&last), &last.info["won"]), (("3: c", 1.0, true), &json!(true)));
    assert!(format!("{:#}", play.step(&world, "d").unwrap_err()).contains("reset before the next step"));
}

#[test]
fn a_replay_that_differs_is_an_error_of_the_episode() {
    let url = serve(|connection, number, message| match (connection, number) {
        (0, 2) => vec![Act::Drop],
        (1, 1) => vec![text("another", 0.0, false)],
        _ => count(number, message),
    });
    let world = open(&url, json!({})).unwrap();
    let error = error_of(&world);
    assert!(
        error.contains(r#"step 1 with another observation: "another", reward 0, done false; before: "1: a""#),
        "{error}"
    );
    // The next reset takes another session.
    assert_eq!(world.spawn().unwrap().reset(&world, start()).unwrap().text, "start 3");
}

#[test]
fn images_survive_a_lost_session_and_must_be_the_same_then() {
    // The third connection shows another picture of the reset. The messages are longer than those of text may be.
    let url = serve(|connection, number, _| match (connection, number) {
        (0, 2) | (1, 2) => vec![Act::Drop],
        _ => {
            let colour = if connection == 2 { 7 } else { 0 };
            let side = if number == 1 { 600 } else { 1 };
            let image = vec![vec![[255, 255, colour]; side]; side];
            let observation = json!({ "text": "look", "image": image });
            let data = json!({ "observation": observation, "reward": 0, "done": false });
            vec![Act::Send(json!({ "type": "observation", "data": data }))]
        }
    });
    let world = open(&url, json!({ "images": "image", "anchor": "text" })).unwrap();
    let mut play = world.spawn().unwrap();
    play.reset(&world, start()).unwrap();
    let seen = play.step(&world, "a").unwrap();
    assert_eq!((seen.images[0].width(), seen.images[0].height()), (600, 600));
    let error = format!("{:#}", play.step(&world, "b").unwrap_err());
    assert!(error.contains(r#"a new one answered the reset with another observation: "look", images "#), "{error}");
}

#[test]
fn a_reset_connects_again() {
    let url = serve(|connection, number, message| match (connection, number) {
        (0, 1) => vec![Act::Drop],
        _ => count(0, message),
    });
    let world = open(&url, json!({})).unwrap();
    let mut play = world.spawn().unwrap();
    for _ in 0..3 {
        assert_eq!(play.reset(&world, start()).unwrap().metrics["reconnects"], 0.0);
    }
}

#[test]
fn an_answer_too_many_is_no_answer_to_the_next_message() {
    // The reset, a step, or the last step is answered twice.
    for at in [0, 1, 3] {
        let url = serve(move |_, number, message| {
            let acts = count(number, message).into_iter();
            acts.map(|act| match act {
                Act::Send(value) if number == at => Act::Twice(value),
                act => act,
            })
            .collect()
        });
        let world = open(&url, json!({})).unwrap();
        let mut play = world.spawn().unwrap();
        let played = play.reset(&world, start()).and_then(|_| {
            ["a", "b", "c"].into_iter().try_for_each(|action| play.step(&world, action).map(drop))?;
            play.reset(&world, start())
        });
        let error = format!("{:#}", played.unwrap_err());
        assert!(error.contains("a message that no request asked for") && error.contains("observation"), "{error}");
        // The next reset takes another session.
        assert_eq!(play.reset(&world, start()).unwrap().text, "start 3");
    }
    // The end of a session may be said at any time, and is survived.
    let url = serve(|connection, number, message| {
        let mut acts = count(number, message);
        if (connection, number) == (0, 1) {
            acts.extend([error("SESSION_ERROR", "the session is too old"), Act::Drop]);
        }
        acts
    });
    let world = open(&url, json!({})).unwrap();
    let mut play = world.spawn().unwrap();
    play.reset(&world, start()).unwrap();
    play.step(&world, "a").unwrap();
    assert_eq!(brief(&play.step(&world, "b").unwrap()), ("2: b", 0.0, false));
}

/// The refusal of a message that lacks a field.
fn missing(field: &str) -> Act {
    let errors = json!([{ "loc": [field], "msg": "Field required" }]);
    Act::Send(
        json!({ "type": "error", "data": { "code": "VALIDATION_ERROR", "message": "Invalid message", "errors": errors } }),
    )
}

/// One answer to the first step, and a part of the error that it gives.
fn answers() -> Vec<(Act, &'static str)> {
    let observation = |fields: Value| Act::Send(json!({ "type": "observation", "data": fields }));
    vec![
        (Act::Text("oops".into()), "sent no JSON: oops"),
        (Act::Text("[".repeat(5000)), "sent no JSON"),
        (Act::Text("[]".into()), "no JSON object"),
        (Act::Text("{}".into()), "no object `data`"),
        (Act::Send(json!({ "type": "state", "data": {} })), r#"of type "state""#),
        (observation(json!({ "observation": "x" })), "no object `observation`"),
        (observation(json!({ "observation": {}, "reward": "much" })), "not a number"),
        (observation(json!({ "observation": {}, "done": 1 })), "not true or false"),
        (Act::Text(r#"{"type":"observation","data":{"observation":{},"reward":NaN}}"#.into()), "sent no JSON"),
        (Act::Text(r#"{"type":"observation","data":{"observation":{},"reward":1e999}}"#.into()), "sent no JSON"),
        (Act::Binary(3), "binary message of 3 bytes"),
        (Act::Text("x".repeat((4 << 20) + 1)), "at most 4194304 are read"),
        (Act::Garbage, "breaks the WebSocket protocol"),
        (error("INVALID_JSON", "Expecting value"), "another version of OpenEnv's protocol"),
        (error("UNKNOWN_TYPE", "step"), "another version of OpenEnv's protocol"),
        (error("VALIDATION_ERROR", "Invalid message"), "config keys `action`, `tool`, `action_extra`"),
        (missing("text"), "`text`: Field required): set config keys `action`"),
        (error("EXECUTION_ERROR", "KeyError: 'a'"), "failed inside the server (EXECUTION_ERROR: KeyError: 'a')"),
        (error("FACTORY_ERROR", "no data"), "cannot make its environment (FACTORY_ERROR: no data)"),
        (error("BRAND_NEW", "x"), "does not know (BRAND_NEW: x)"),
        (error("", "words"), "an error without a code (words)"),
    ]
}

#[test]
fn wrong_answers_are_errors_that_name_the_fault() {
    for index in 0..answers().len() {
        let url = serve(move |connection, number, message| match (connection, number) {
            (0, 1) => vec![answers().swap_remove(index).0],
            _ => count(number, message),
        });
        let (world, word) = (open(&url, json!({})).unwrap(), answers()[index].1);
        let mut play = world.spawn().unwrap();
        play.reset(&world, start()).unwrap();
        let error = format!("{:#}", play.step(&world, "a").unwrap_err());
        assert!(error.contains(word) && !error.contains('\n') && error.len() < 900, "{word}: {error}");
        // The instance plays again after a reset.
        assert_eq!(play.reset(&world, start()).unwrap().text, "start 3");
    }
}

#[test]
fn a_server_that_hangs_is_given_up_at_its_deadline() {
    let world = open(&serve(|_, _, _| vec![Act::Silence]), json!({ "timeout_s": 0.2 })).unwrap();
    let error = error_of(&world);
    assert!(error.contains("did not answer within 0.2 s (config key `timeout_s`)"), "{error}");
}

#[test]
fn a_server_that_gives_no_session_is_given_up_at_its_deadline() {
    let cases = [
        (|| Act::Drop) as fn() -> Act,
        || error("CAPACITY_REACHED", "8/8 sessions active"),
        || error("SESSION_ERROR", "gone"),
    ];
    let words =
        ["closed the connection", "8/8 sessions active): raise its max_concurrent_envs", "(SESSION_ERROR: gone)"];
    // Long enough for a handshake on any machine; the cases wait side by side.
    let limit = json!({ "connect_timeout_s": 4 });
    std::thread::scope(|scope| {
        for (act, word) in cases.into_iter().zip(words) {
            let world = open(&serve(move |_, _, _| vec![act()]), limit.clone()).unwrap();
            scope.spawn(move || {
                let error = error_of(&world);
                assert!(
                    error.contains(word) && error.contains("within 4 s (config key `connect_timeout_s`)"),
                    "{error}"
                );
            });
        }
    });
}

#[test]
fn a_full_server_is_waited_for() {
    let url = serve(|connection, number, message| match connection {
        0..3 => vec![error("CAPACITY_REACHED", "8/8 sessions active"), Act::Drop],
        _ => count(number, message),
    });
    let world = open(&url, json!({})).unwrap();
    assert_eq!(world.spawn().unwrap().reset(&world, start()).unwrap().text, "start 3");
}

#[test]
fn the_own_limit_of_sessions_holds_until_an_instance_is_closed() {
    let world =
        open(&serve(|_, number, message| count(number, message)), json!({ "sessions": 1, "connect_timeout_s": 4 }))
            .unwrap();
    let (mut one, mut two) = (world.spawn().unwrap(), world.spawn().unwrap());
    one.reset(&world, start()).unwrap();
    let error = format!("{:#}", two.reset(&world, start()).unwrap_err());
    assert!(error.contains("all 1 sessions of config key `sessions` are taken"), "{error}");
    drop(one);
    two.reset(&world, start()).unwrap();
}

#[test]
fn pings_are_answered_on_the_way() {
    let pongs = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&pongs);
    let url = serve(move |_, number, message| {
        if message["type"] == "pong" {
            seen.fetch_add(1, Ordering::Relaxed);
            return vec![];
        }
        let mut acts = vec![Act::Ping];
        acts.extend(count(number, message));
        acts
    });
    let world = open(&url, json!({})).unwrap();
    let mut play = world.spawn().unwrap();
    play.reset(&world, start()).unwrap();
    for action in ["a", "b", "c"] {
        play.step(&world, action).unwrap();
    }
    // A pong leaves with the next message, so that of the last ping may not.
    assert!(pongs.load(Ordering::Relaxed) >= 3);
}

#[test]
fn a_value_that_the_server_refuses_is_an_invalid_step() {
    let url = serve(|_, number, message| match message["data"]["text"].as_str() {
        Some("bad") => vec![Act::Send(json!({ "type": "error", "data": {
            "code": "VALIDATION_ERROR", "message": "Invalid message",
            "errors": [{ "loc": ["text"], "msg": "Input should be 'up' or 'down'" }],
        } }))],
        _ => count(number, message),
    });
    let world = open(&url, json!({ "max_steps": 2 })).unwrap();
    let mut play = world.spawn().unwrap();
    play.reset(&world, start()).unwrap();
    let seen = play.step(&world, "bad").unwrap();
    assert_eq!((brief(&seen), seen.valid, seen.action.as_str()), (("start 3", 0.0, false), false, "bad"));
    let seen = play.step(&world, "up").unwrap();
    assert_eq!((seen.valid, seen.terminated, seen.truncated), (true, false, true));
}

#[test]
fn a_place_without_a_server_is_the_users_mistake() {
    let error = open("ws://127.0.0.1:9", json!({})).err().unwrap();
    assert!(format!("{error:#}").contains("start the OpenEnv server, or correct config key `url`"), "{error:#}");
}
