//! Expected numbers are worked out by hand from the equation.

use nestor_plugin::recorded::{NamedCells, Recorded, RecordedRow};
use nestor_plugin::{Estimator, Scores};

use super::Opd;

/// Two episodes of one group with returns 1 and 0, of two tokens each.
fn scores(config: serde_json::Value) -> Vec<f32> {
    let rows = [("a", 1.0, [-0.5, -1.0]), ("b", 0.0, [-3.0, -20.0])].map(|(traj, reward, teacher)| RecordedRow {
        traj: traj.into(),
        anchor: "s".into(),
        reward,
        valid: true,
        resp_len: 2,
        named: NamedCells { teacher_logprobs: Some(teacher.into()), ..NamedCells::default() },
        ..RecordedRow::default()
    });
    let columns = Recorded { rows: rows.into(), ..Recorded::default() }.columns().expect("sound rows");
    let asked = columns.asked();
    let mut view = columns.view_with(&asked);
    let policy = [-1.0, -1.0, -1.0, -2.0];
    view.logprobs = Some(&policy);
    let (mut advantages, mut returns) = (vec![0.0; 4], vec![0.0; 4]);
    let config: Opd = serde_json::from_value(config).expect("a config");
    let mut opd = Opd::open(config).expect("sound keys");
    opd.score(&view, &mut Scores::new(&mut advantages, &mut returns)).expect("scores");
    assert_eq!(advantages, returns);
    advantages
}

#[test]
fn a_token_is_worth_what_the_teacher_thinks_of_it() {
    assert_eq!(scores(serde_json::json!({})), [0.5, 0.0, -2.0, -10.0]);
    assert_eq!(scores(serde_json::json!({"kl_weight": 0.5, "clip": 1.0})), [0.25, 0.0, -0.5, -0.5]);
    let both = scores(serde_json::json!({"task_weight": 2.0, "norm": "none", "clip": 100.0}));
    assert_eq!(both, [1.5, 1.0, -3.0, -19.0]); // the episodes' advantages are 1/2 and -1/2
    for wrong in [serde_json::json!({"kl_weight": -1.0}), serde_json::json!({"clip": 0.0})] {
        assert!(Opd::open(serde_json::from_value(wrong).expect("a config")).is_err());
    }
}
