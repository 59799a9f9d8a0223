//! Has cargo compile this crate again when a file is added to a folder that it embeds.

fn main() {
    for folder in ["templates", "../../plugins/sdk/src"] {
        println!("cargo:rerun-if-changed={folder}");
    }
}
