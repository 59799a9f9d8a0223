//! Plugins found and refused, and the program that runs foreign ones.

use std::env;

use nestor_args::message::message;
use nestor_host::{Kind, PATH_VARIABLE, Plugins};

use super::Check;

pub fn checks() -> Vec<Check> {
    let searched = Plugins::discover().and_then(|plugins| Ok((plugins.list()?, plugins.refused()?)));
    let (found, refused) = match searched {
        Ok(both) => both,
        Err(error) => {
            return vec![Check::fail("plugins", message(&error), format!("correct {PATH_VARIABLE}, or unset it"))];
        }
    };
    let of_kind = |kind| found.iter().filter(|one| one.kind == kind).map(|one| one.id.as_str()).collect::<Vec<_>>();
    let (environments, estimators) = (of_kind(Kind::Environment), of_kind(Kind::Estimator));
    let mut checks = Vec::new();
    for (name, ids) in [("environments", environments), ("estimators", estimators), ("losses", of_kind(Kind::Loss))] {
        checks.push(match ids.is_empty() {
            false => Check::ok(name, ids.join(", ")),
            true => Check::fail(
                name,
                "none found",
                format!("keep the files libnestor_*.so beside the program, or name their folder in {PATH_VARIABLE}"),
            ),
        });
    }
    checks.extend(refused.iter().map(|file| {
        let remedy = format!(
            "build it again against this SDK, or take it out of the folder; nestor plugin check {}",
            file.path.display()
        );
        Check::fail("plugin", format!("{}: {}", file.path.display(), file.why), remedy)
    }));
    let host = env::current_exe().unwrap_or_default().with_file_name("nestor-host");
    checks.push(match host.is_file() {
        true => Check::ok("nestor-host", host.display().to_string()),
        false => Check::warn(
            "nestor-host",
            format!("there is no {}", host.display()),
            "plugins that did not come with Nestor run in it: keep it beside the program, or name it by NESTOR_HOST",
        ),
    });
    checks
}
