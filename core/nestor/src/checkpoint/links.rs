//! The links `latest` and `best` beside the checkpoints that they name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The newest checkpoint.
pub const LATEST: &str = "latest";
/// The checkpoint with the highest success in an evaluation.
pub const BEST: &str = "best";

/// Has the link `name` in `dir` name the checkpoint `target`, or removes it where there is none. A reader finds the old
/// target or the new one, never nothing. Something that is no link is left alone.
pub fn point(dir: &Path, name: &str, target: Option<&str>) -> Result<()> {
    let link = dir.join(name);
    let context = || format!("linking {} to {}", link.display(), target.unwrap_or("nothing"));
    let found = fs::symlink_metadata(&link).ok();
    ensure!(
        found.as_ref().is_none_or(fs::Metadata::is_symlink),
        "{} is no link: move it away, so that it can name a checkpoint",
        link.display()
    );
    let Some(target) = target else {
        return if found.is_some() { fs::remove_file(&link).with_context(context) } else { Ok(()) };
    };
    if found.is_some() && fs::read_link(&link).is_ok_and(|now| now == Path::new(target)) {
        return Ok(());
    }
    let temporary = dir.join(format!("{name}.tmp"));
    if fs::symlink_metadata(&temporary).is_ok_and(|metadata| metadata.is_symlink()) {
        fs::remove_file(&temporary).with_context(context)?; // an interrupted run left it
    }
    symlink(target, &temporary).and_then(|()| fs::rename(&temporary, &link)).with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_follows_its_target_and_replaces_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path();
        let link = dir.join(LATEST);
        symlink("gone", dir.join("latest.tmp")).expect("made");
        for target in ["iteration-000001", "iteration-000001", "iteration-000002"] {
            point(dir, LATEST, Some(target)).expect("linked");
            assert_eq!(fs::read_link(&link).expect("a link"), Path::new(target));
        }
        point(dir, LATEST, None).expect("removed");
        point(dir, LATEST, None).expect("nothing to remove");
        assert!(fs::symlink_metadata(&link).is_err());
        fs::write(&link, "mine").expect("written");
        assert!(point(dir, LATEST, Some("iteration-000003")).is_err());
        assert_eq!(fs::read_to_string(&link).expect("read"), "mine");
    }
}
