//! `nestor doctor`: checks the machine and the installation, one line per check, with a remedy for all that is wrong.
//!
//! Questions that need libtorch go to `nestor-torch`, so that a broken libtorch does not break the doctor.

mod accounts;
mod gpu;
mod machine;
mod plugins;
mod torch;

use std::fmt::{self, Display, Formatter};

use anyhow::Result;
use serde::Serialize;

use nestor_args::output::print;

/// The verdict on one part of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    /// Something works badly, or not in all cases.
    Warn,
    /// A run cannot work.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// The facts.
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), remedy: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(name, found, remedy) }
    }
}

impl Display for Check {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        write!(f, "{verdict:4}  {:12}  {}", self.name, self.found)?;
        self.remedy.iter().try_for_each(|remedy| write!(f, "\n{:20}remedy: {remedy}", ""))
    }
}

/// Runs all checks and prints them; returns the exit code: 1 if one failed.
pub fn doctor(json: bool) -> Result<u8> {
    let mut checks = vec![Check::ok("nestor", nestor_version::VERSION_AND_COMMIT)];
    let (torch, cuda) = torch::checks();
    checks.extend(torch);
    checks.extend(gpu::checks(cuda.as_ref()));
    checks.extend(plugins::checks());
    checks.extend(machine::checks());
    checks.extend(accounts::checks());
    let passed = checks.iter().all(|check| check.verdict != Verdict::Fail);
    let all = serde_json::json!({ "passed": passed, "checks": checks });
    print(json, &all, || checks.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
    Ok(if passed { 0 } else { 1 })
}
