//! A small tracked run. Offline: `cargo run --release -p wandb-rs --example track`; live: with `live` behind it, after
//! `export WANDB_API_KEY=…` and `pip install wandb`.

use wandb_rs::{Aggregate, Metric, Mode, Run, Settings, Table, Value};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let live = std::env::args().nth(1).is_some_and(|word| word == "live");
    let mode = if live { Mode::Live } else { Mode::Offline };
    let mut run = Run::init(Settings { project: "wandb-rs".into(), mode, ..Settings::default() })?;
    run.config(&serde_json::json!({"lr": 0.1, "model": {"layers": 2, "width": 64}}))?;
    run.define_metric(Metric::new("train/*").step("train/epoch"))?;
    run.define_metric(Metric::new("success").summary([Aggregate::Max, Aggregate::Last]))?;
    for epoch in 0..20_u32 {
        let success = 1.0 - (-f64::from(epoch) / 5.0).exp();
        let row: [(&str, Value); 3] =
            [("train/epoch", epoch.into()), ("train/loss", (1.0 - success).into()), ("success", success.into())];
        run.log(epoch.into(), row)?;
        run.output(&format!("epoch {epoch}: success {success:.3}"))?;
    }
    let rows = vec![vec!["heat the egg".into(), true.into()], vec!["cool the mug".into(), false.into()]];
    run.log(20, [("episodes", Table { columns: vec!["task".into(), "won".into()], rows })])?;
    println!("{}", run.finish(0)?);
    Ok(())
}
